"""The reason to switch: Horovod 0.28.1's own optimizer does not synchronise Keras 3 models."""

from ranks import launch, values

RANKS = 2


def test_horovods_optimizer_lets_ranks_drift_and_ours_does_not(tmp_path, capsys) -> None:
    outcomes = launch("scenarios_proof", RANKS, tmp_path)
    told = values(outcomes, "same_script_twice", RANKS)[0]
    with capsys.disabled():
        print(f"\nlargest difference of a weight between {RANKS} ranks after 20 steps of `fit`:")
        for module, difference in told.items():
            print(f"  {module:24} {difference:.3g}")
    assert told["horovod.tensorflow.keras"] > 0.05
    assert told["gradcomp.horovod"] == 0
