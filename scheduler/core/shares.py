"""How much service each tenant has had, for `policy=fair`: a virtual token counter each.

After "Fairness in Serving Large Language Models" (OSDI 2024): the prompt is charged when a request
is first admitted, each token of the answer when it is known, divided by the tenant's weight. What
a preemption makes the system compute again is nobody's service. A tenant that comes back from
idleness is lifted to those who wait, so that it can claim nothing for the time when it was away.
"""

from collections import Counter
from collections.abc import Iterable, Mapping


class Shares:
    """One for all workers: a tenant's service is what it gets of the whole fleet."""

    def __init__(
        self,
        input_weight: float = 1.0,
        output_weight: float = 2.0,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.input_weight = input_weight  # of a token of a prompt
        self.output_weight = output_weight  # of a token of an answer
        self.served: dict[str, float] = {}
        self.weights: dict[str, float] = dict(weights or {})
        self._waiting: Counter[str] = Counter()  # requests, in the lines of all workers
        self._last_left = ""  # the tenant that ceased to wait last

    def set_weight(self, tenant: str, weight: float) -> None:
        """What it is charged from now on is divided by this. ValueError unless positive."""
        if not weight > 0:
            raise ValueError(f"the weight of {tenant} must be positive, not {weight}")
        self.weights[tenant] = weight

    def charge_input(self, tenant: str, num_tokens: int) -> None:
        self._charge(tenant, self.input_weight * num_tokens)

    def charge_output(self, tenant: str, num_tokens: int) -> None:
        self._charge(tenant, self.output_weight * num_tokens)

    def came(self, tenant: str, least_waiting: float | None) -> None:
        """One of its requests waits now. `least_waiting`: the smallest counter of who waits."""
        self._waiting[tenant] += 1
        if self._waiting[tenant] == 1:
            floor = self.of(self._last_left) if least_waiting is None else least_waiting
            self.served[tenant] = max(self.of(tenant), floor)

    def left(self, tenant: str) -> None:
        """One of its requests waits no more."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._last_left = tenant

    def of(self, tenant: str) -> float:
        return self.served.get(tenant, 0.0)

    def forget(self, tenants: Iterable[str]) -> None:
        for tenant in tenants:
            self.served.pop(tenant, None)

    def _charge(self, tenant: str, service: float) -> None:
        self.served[tenant] = self.of(tenant) + service / self.weights.get(tenant, 1.0)
