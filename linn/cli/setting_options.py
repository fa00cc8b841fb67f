"""Settings given as options: `linn topics create NAME --kind stream` means `linn topics create NAME kind=stream`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand

from linn.core.errors.texts import did_you_mean


class SettingsCommand(TyperCommand):
    """Command whose last argument is [KEY=VALUE]..., and that accepts `--KEY VALUE` and `--KEY=VALUE` as well."""

    @abstractmethod
    def setting_keys(self) -> Iterable[str]:
        """Return the settings that may be options. Called only for such an option: may import slow modules."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Rewrite options that are settings. Raises UsageError for an unknown option, or one without a value."""
        options = [name for parameter in self.get_params(ctx) for name in parameter.opts]
        kept, settings = [], []
        rest = iter(args)
        for arg in rest:
            option, equals, value = arg.partition("=")
            key = option.removeprefix("--").replace("-", "_")
            if arg == "--":
                kept += [arg, *rest]
            elif not arg.startswith("--") or option in options:
                kept.append(arg)
            elif key not in self.setting_keys() and not ctx.resilient_parsing:
                unknown = f"there is no option {option}, and settings are --KEY VALUE or KEY=VALUE"
                ctx.fail(f"{unknown}{did_you_mean(key, [*self.setting_keys(), *(name[2:] for name in options)])}")
            else:
                settings.append(f"{key}={value if equals else self._value(ctx, option, key, rest)}")
        # Behind the arguments, which may follow the options: the name comes first.
        return super().parse_args(ctx, [*kept, *settings])

    @staticmethod
    def _value(ctx: Any, option: str, key: str, rest: Iterable[str]) -> str:
        value = next(iter(rest), None)
        if (value is None or value.startswith("--")) and not ctx.resilient_parsing:
            ctx.fail(f"the setting {option} wants a value: {option} VALUE, or {key}=VALUE")
        return value or ""


class TopicSettingsCommand(SettingsCommand):
    """Command that takes settings of a topic."""

    def setting_keys(self) -> Iterable[str]:
        """Return all settings of topics."""
        from linn.core.config.decoder import known_keys
        from linn.core.config.topic_settings import TopicSettings

        return known_keys(TopicSettings)


class ExchangeSettingsCommand(SettingsCommand):
    """Command that takes settings of an exchange."""

    def setting_keys(self) -> Iterable[str]:
        """Return the settings common to all exchanges; settings of one type can be given as KEY=VALUE only."""
        return ("type", "alternate")
