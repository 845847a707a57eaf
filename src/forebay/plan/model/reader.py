"""One `config.json`, read field by field."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forebay.errors import SettingsError
from forebay.plan.model.shape import VALUES_MAX
from forebay.plan.number import whole

Config = Mapping[str, object]

_ALIASES: Final = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_size": "n_embd",
}


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """One configuration, read field by field; every error names field and file."""

    source: str
    fields: Config

    def whole(
        self, field: str, default: int | None = None, *, least: int = 1, most: int = VALUES_MAX
    ) -> int:
        """A field, its old alias, or the default; an error without any of them."""
        names = (field, _ALIASES.get(field, field))
        value = next((self.fields[n] for n in names if self.fields.get(n) is not None), default)
        if value is None:
            raise SettingsError(f"{field} is missing in {self.source}; add it.")
        return whole(f"{field} in {self.source}", value, least=least, most=most)

    def text(self, field: str, default: str | None = None) -> str:
        value = self.fields.get(field, default)
        if not isinstance(value, str):
            raise SettingsError(f"{field} in {self.source} must be a name, not {value!r:.40}.")
        return value

    def flag(self, field: str, *, default: bool) -> bool:
        value = self.fields.get(field, default)
        if not isinstance(value, bool):
            raise SettingsError(f"{field} in {self.source} must be true or false.")
        return value

    def inner(self, field: str) -> "ConfigReader":
        """A configuration within this one."""
        value = self.fields.get(field)
        if not isinstance(value, Mapping):
            raise SettingsError(f"{field} in {self.source} must be a JSON object.")
        return ConfigReader(f"{field} in {self.source}", value)

    def listed(self, field: str, count: int) -> list[object]:
        """A list with one value for each layer."""
        value = self.fields.get(field)
        if not isinstance(value, list) or len(value) != count:
            raise SettingsError(
                f"{field} in {self.source} must list one value for each of the {count} layers."
            )
        return value
