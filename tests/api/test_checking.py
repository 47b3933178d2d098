"""The rules checked from Python: a sound method holds all, and what a broken one does is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import pfl_bench as pfl

class Forgetful(pfl.Algorithm):
    title, summary, citation, scored_model = "Forgetful", "Counts.", "none", "the global model"
    seen = 0

    def train(self, client, received):
        Forgetful.seen += 1
        if Forgetful.seen % 2:
            super().train(client, received)

rules = pfl.check("fedper")
assert len(rules) > 15 and rules["holds"].all(), rules[~rules["holds"]]
broken = pfl.check(Forgetful)
print(broken.loc[~broken["holds"], ["rule", "seen"]].to_csv())
"""


def test_a_broken_rule_is_named_and_a_sound_method_has_none(tmp_path: Path) -> None:
    (tmp_path / "session.py").write_text(CODE)
    done = subprocess.run(
        [sys.executable, "session.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "resuming from any round changes no bit" in done.stdout
