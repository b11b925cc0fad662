"""Which gateways show which row's tokens; pure."""

from collections.abc import Iterable

from common.messages import GatewayId, RequestId, Sampled, StepPlan, TokenBatch


class Viewers:
    def __init__(self) -> None:
        self._gateways: dict[RequestId, tuple[GatewayId, ...]] = {}

    @property
    def num_rows(self) -> int:
        return len(self._gateways)

    def follow(self, plan: StepPlan) -> None:
        """Take in who joins, who leaves, and whose viewers changed."""
        for request_id in plan.released:
            self._gateways.pop(request_id, None)
        for row in plan.admitted:
            self._gateways[row.request_id] = row.gateways
        self._gateways.update(plan.gateways)

    def batches(self, sampled: Iterable[Sampled]) -> dict[GatewayId, TokenBatch]:
        """The tokens of one step, sorted by the gateways that show them."""
        by_gateway: dict[GatewayId, list[Sampled]] = {}
        for token in sampled:
            for gateway in self._gateways.get(token.request_id, ()):
                by_gateway.setdefault(gateway, []).append(token)
        return {gateway: TokenBatch(tuple(tokens)) for gateway, tokens in by_gateway.items()}
