"""Messages that tests of the bus send about."""

from common.messages import (
    BlockId,
    Chunk,
    Ended,
    Ending,
    FinishReason,
    GatewayId,
    JournalHead,
    RequestId,
    RowStart,
    Sampled,
    Sampling,
    StepPlan,
    StepResult,
    SubmissionId,
    Submit,
    TokenBatch,
    WorkerHello,
    WorkerId,
)

GATEWAY = GatewayId("gateway-1")
WORKER = WorkerId("worker-1")
REQUEST = RequestId("a.0")


def submit(name: str = "a", n: int = 1) -> Submit:
    return Submit(
        submission_id=SubmissionId(name),
        prompts=((1, 2, 3),),
        n=n,
        sampling=Sampling(seed=7, temperature=0.5, logit_bias=((5, -1.5),)),
        ending=Ending(max_tokens=16, end_tokens=(0,)),
        gateway=GATEWAY,
        deadline_seconds=30.0,
        frame={"model": "m", "stop": ["\n"]},
    )


def head(request: RequestId = REQUEST, entry: str = "1-0") -> JournalHead:
    return JournalHead(request, entry, num_prompt=3, tenant="t", digest="d", frame={"model": "m"})


def hello(worker: WorkerId = WORKER, beat: int = 0, leaving: bool = False) -> WorkerHello:
    return WorkerHello(
        worker_id=worker,
        model="m",
        device="cpu",
        num_blocks=64,
        block_size=16,
        max_request_tokens=1024,
        max_step_tokens=512,
        max_rows=32,
        beat=beat,
        leaving=leaving,
    )


def plan(step: int, request: RequestId = REQUEST) -> StepPlan:
    start = submit()
    row = RowStart(request, (1, 2, 3), 3, start.sampling, start.ending, (GATEWAY,))
    chunk = Chunk(request, start=0, count=3, new_blocks=(BlockId(4),), samples=True)
    return StepPlan(step, released=(RequestId("z.0"),), admitted=(row,), chunks=(chunk,))


def result(step: int, request: RequestId = REQUEST, token: int = 11) -> StepResult:
    return StepResult(step, (Sampled(request, step - 1, token),), seconds=0.25)


def batch(of: StepResult) -> dict[GatewayId, TokenBatch]:
    return {GATEWAY: TokenBatch(of.sampled)}


def end(kept: int = 2, request: RequestId = REQUEST) -> Ended:
    return Ended(request, kept, FinishReason.LENGTH, cached_tokens=1)
