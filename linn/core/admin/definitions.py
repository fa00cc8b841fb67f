"""The export of a broker's definitions: its exchanges and topics in one answer, which is on the audit trail."""

from __future__ import annotations

import json

from linn import rights, verbs
from linn.core.admin.audit import AuditTrail
from linn.core.admin.exchanges import ExchangeAdministration
from linn.core.admin.topic_description import JsonText, topics_as_json
from linn.core.loop.long_work import LongWork
from linn.core.ports.principal import Principal
from linn.core.topics.catalog import Catalog


class DefinitionsAdministration:
    """The verbs that list topics and export definitions."""

    def __init__(
        self, catalog: Catalog, exchanges: ExchangeAdministration, long_work: LongWork, audit: AuditTrail
    ) -> None:
        self._catalog = catalog
        self._exchanges = exchanges
        self._long_work = long_work
        self._audit = audit

    async def export(self, _: verbs.NoArguments, caller: Principal) -> JsonText:
        """Describe all exchanges and topics that the caller may see, at one moment but for the contents of topics.

        Topics and exchanges that are not kept over a restart are left out.
        """
        self._audit.seen(verbs.EXPORT_DEFINITIONS.name, caller, "", "done")
        found = await self._exchanges.list_all(verbs.NoArguments(), caller)
        exchanges = [exchange for exchange in found if not self._catalog.routers[exchange["name"]].is_transient]
        kept = [name for name, topic in self._catalog.topics.items() if not topic.settings.is_transient]
        topics = await self._list(kept, caller)
        return JsonText(f'{{"exchanges":{json.dumps(exchanges)},"topics":{topics}}}')

    async def list_topics(self, _: verbs.NoArguments, caller: Principal) -> JsonText:
        """Describe the topics that the caller may see, by name."""
        return await self._list(list(self._catalog.topics), caller)

    async def _list(self, names: list[str], caller: Principal) -> JsonText:
        names = caller.access.visible(rights.TOPIC, sorted(names))
        return await self._long_work.run(topics_as_json(self._catalog.topics, names), immediate=True)
