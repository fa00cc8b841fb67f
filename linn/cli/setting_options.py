"""Settings as options: `linn topics create NAME --kind stream` is `linn topics create NAME kind=stream`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand

from linn.core.errors.texts import did_you_mean


class SettingsCommand(TyperCommand):
    """A command with [KEY=VALUE]... as its last argument: `--KEY VALUE` and `--KEY=VALUE` work as well."""

    @abstractmethod
    def setting_keys(self) -> Iterable[str]:
        """The settings that may be options. Called only where there is such an option: it may import what is slow."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Rewrite options that are settings. Raises UsageError for one that is none, or has no value."""
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
        # Behind the arguments, which may stand behind the options: the name comes first.
        return super().parse_args(ctx, [*kept, *settings])

    @staticmethod
    def _value(ctx: Any, option: str, key: str, rest: Iterable[str]) -> str:
        value = next(iter(rest), None)
        if (value is None or value.startswith("--")) and not ctx.resilient_parsing:
            ctx.fail(f"the setting {option} wants a value: {option} VALUE, or {key}=VALUE")
        return value or ""


class TopicSettingsCommand(SettingsCommand):
    """A command that takes settings of a topic."""

    def setting_keys(self) -> Iterable[str]:
        """All settings of topics."""
        from linn.core.config.decoder import known_keys
        from linn.core.config.topic_settings import TopicSettings

        return known_keys(TopicSettings)


class ExchangeSettingsCommand(SettingsCommand):
    """A command that takes settings of an exchange."""

    def setting_keys(self) -> Iterable[str]:
        """The settings that all exchanges have; those of one type are KEY=VALUE only."""
        return ("type", "alternate")
