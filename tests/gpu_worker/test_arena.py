"""Pieces of an arena: apart, aligned, and in memory that may lie in huge pages."""

from pathlib import Path

import pytest
import torch

from gpu_worker.huge_pages import HUGE_PAGE_BYTES
from gpu_worker.native import arena
from gpu_worker.native.arena import Arena

SMAPS = Path("/proc/self/smaps")
HAS_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage").exists()


def test_pieces_keep_what_is_written_to_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "CHUNK_BYTES", 1000)  # several chunks, and pieces above one
    pieces = Arena()
    counts = [1, 63, 64, 65, 700, 1, 5000, 250]
    kept = [pieces.empty(count, torch.bfloat16).fill_(i) for i, count in enumerate(counts)]
    for i, (piece, count) in enumerate(zip(kept, counts, strict=True)):
        assert piece.shape == (count,)
        assert piece.data_ptr() % arena.ALIGNMENT == 0
        assert (piece == i).all()


def test_pieces_follow_each_other_from_the_start_of_a_huge_page() -> None:
    pieces = Arena()
    first, second = pieces.empty(100, torch.uint8), pieces.empty(100, torch.uint8)
    assert first.data_ptr() % HUGE_PAGE_BYTES == 0
    assert second.data_ptr() == first.data_ptr() + 128


def test_a_piece_outlives_its_arena() -> None:
    piece = Arena().empty(1 << 22, torch.float32).fill_(3)
    Arena().empty(1 << 22, torch.float32).fill_(4)
    assert (piece == 3).all()


@pytest.mark.skipif(not (SMAPS.exists() and HAS_HUGE_PAGES), reason="of Linux with huge pages")
def test_asks_for_huge_pages() -> None:
    piece = Arena().empty(1 << 20, torch.uint8)
    address, flags = piece.data_ptr(), ""
    is_there = False
    for line in SMAPS.read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            start, stop = (int(bound, 16) for bound in words[0].split("-"))
            is_there = start <= address < stop
        elif words[0] == "VmFlags:" and is_there:
            flags = line
    assert " hg" in flags
