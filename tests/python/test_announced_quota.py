"""A quota that nobody configured, learned from the headers that announce it; `make quota` has long runs."""

from announced_quota import run


def test_one_process_works_at_the_speed_of_the_quota_without_refusals():
    worked = run(processes=1, calls=600)
    assert (worked.failed, worked.refused) == (0, 0)
    assert worked.ratio <= 1.05


def test_processes_that_share_it_do_not_fight_over_it():
    worked = run(processes=4, calls=600)
    assert worked.failed == 0
    # They know nothing of each other until the first answers: a short run has little else.
    assert worked.refused <= 0.04
    assert worked.ratio <= 1.15
