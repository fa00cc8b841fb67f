"""The content exchange: a binding has a predicate over the message, `when = 'label.region = "eu" and size > 1000'`."""

from __future__ import annotations

import msgspec

from linn.api import Binding, BindingInvalid, ExchangeKind, Predicate, PredicateInvalid, did_you_mean, hookimpl
from linn.plugins.predicate_exchange import PredicateExchange

WHEN = "when"


class ContentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a content exchange: none besides its type."""


class ContentExchange(PredicateExchange):
    """An exchange whose bindings match messages by a predicate."""

    def predicate_of(self, binding: Binding) -> Predicate:
        """The predicate in `when`. Raises BindingInvalid."""
        for name in binding.arguments:
            if name != WHEN:
                raise BindingInvalid(f'unknown key "{name[:40]}"{did_you_mean(name, (WHEN,))}', name)
        if binding.key:
            raise BindingInvalid('a content exchange takes no key, only "when": when = \'routing_key = "..."\'', "key")
        text = binding.arguments.get(WHEN)
        if text is None:
            raise BindingInvalid(f"exchange {self.name} needs a predicate: when = 'label.region = \"eu\"'")
        if not isinstance(text, str):
            raise BindingInvalid("a predicate must be text", WHEN)
        try:
            return Predicate.parse(text)
        except PredicateInvalid as error:
            raise PredicateInvalid(error.text, WHEN) from None


@hookimpl
def linn_register_exchange() -> ExchangeKind:
    """Register `type = "content"`."""
    return ExchangeKind("content", ContentSettings, ContentExchange)
