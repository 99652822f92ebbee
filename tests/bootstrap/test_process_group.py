def test_an_existing_gloo_group_is_a_world_and_survives_a_missed_deadline(program, by_hand):
    codes, output = program.run(*by_hand, steps=["torch_group", "exchange"])
    assert codes == [0, 0], output
    for rank in range(2):
        assert program.report(rank)["torch_group"] == ["process_group", True, True]
        assert program.report(rank)["exchange"]
    reports = [program.report(rank) for rank in range(2)]
    # new_group sorts its ranks, so group rank 0 is the one that waits for group rank 1.
    assert any("rank 1" in report.get("late", "") for report in reports)
