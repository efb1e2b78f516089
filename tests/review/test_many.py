"""Many decisions at once, and several people, on the review page in a browser."""

import json
import signal
import threading

from labelsieve.cli import execute
from labelsieve.review.decisions import DecisionLog, decisions_path
from labelsieve.review.server import ReviewServer
from labelsieve.review.state import ReviewState
from tests.review.conftest import (
    CLASSES,
    KEEP,
    TIMEOUT,
    Client,
    add_other_issues,
    logged_decisions,
    make_audited_run,
    press,
    shown_index,
    wait_until,
)

MANY = {"decision": "accept", "since": 0, "tab": "t", "reviewer": "", "action": "one"}


def open_grid(page) -> None:
    press(page, "g")
    wait_until(page, "view === 'grid' && cells.length > 0")


def test_pair_is_accepted_and_undone_in_one_action(run, serve, page_of):
    page = page_of(serve(run).url)
    open_grid(page)
    # 39 is a cat that is suggested to be a dog: its pair is shown, most suspicious first
    assert page.evaluate("cells.map((sample) => sample.index)") == [*range(39, 4, -3)]
    assert page.input_value("#pair") != "" and "39" in page.get_attribute("#cell-0", "aria-label")
    # qualities are 0, 0.025, 0.05, ... in order of suspicion, of which every third sample is in this pair
    assert page.locator(".cell .facts").all_inner_texts()[:3] == ["#1\nunder 1%", "#4\n8%", "#7\n15%"]
    assert page.text_content("#accept-all") == "a Change to dog" and page.text_content("#keep-all") == "k Keep cat"
    page.keyboard.press("Control+a")
    assert page.text_content("#chosen") == "12 of 12 selected"
    press(page, "a")
    wait_until(page, "decisions.size === 12")
    lines = logged_decisions(run)
    assert [line["index"] for line in lines] == [*range(39, 4, -3)] and len({line["action"] for line in lines}) == 1
    assert all(line["decision"] == "accept" and line["label"] == "dog" for line in lines)
    assert "12 changed as suggested. Press z to undo." in page.text_content("#notice")
    assert page.evaluate("cells[0].given") == "eel"  # the next pair
    press(page, "z")
    wait_until(page, "decisions.size === 0")
    assert [line["decision"] for line in logged_decisions(run)[12:]] == ["undo"] * 12
    assert page.evaluate("cells.map((sample) => sample.index)") == [*range(39, 4, -3)]
    press(page, "z")
    assert len(logged_decisions(run)) == 24 and page.messages == []


def test_equal_qualities_are_explained(run, serve, page_of):
    gallery = run / "audit" / "gallery.jsonl"
    rows = [json.loads(line) for line in gallery.read_text().splitlines()]
    low = [{**row, "label_quality": 0.05 + place / 1e5} for place, row in enumerate(rows[:9])]
    gallery.write_text("".join(json.dumps(row) + "\n" for row in [*low, *rows[9:]]))
    page = page_of(serve(run).url)
    open_grid(page)
    assert page.locator(".cell .facts").all_inner_texts()[:3] == ["#1\n5%", "#4\n5%", "#7\n5%"]
    assert page.text_content("#order").endswith("The first 3 have the lowest quality, 5%; their order still counts.")
    page.select_option("#pair", "")
    assert "The first 9 have" in page.text_content("#order")
    assert page.text_content("#accept-all") == "a Accept suggestions" and page.messages == []
    page.hover("#filter")
    assert page.get_attribute("#filter", "title") == "All labels"  # the whole text of what may be cut


def test_selection_by_click_range_drag_and_keys(run, serve, page_of):
    page = page_of(serve(run).url, viewport={"width": 1200, "height": 900})
    open_grid(page)

    def chosen():
        return page.evaluate("[...cells.keys()].filter((place) => selected.has(cells[place].index))")

    page.click("#cell-1")
    page.click("#cell-4", modifiers=["Shift"])
    assert chosen() == [1, 2, 3, 4]
    page.click("#cell-2")
    assert chosen() == [1, 3, 4]
    page.keyboard.press("Escape")
    assert chosen() == [] and page.evaluate("view") == "grid"
    page.hover("#cell-0")
    page.mouse.down()
    page.hover("#cell-1")
    page.hover("#cell-3")
    page.mouse.up()
    assert chosen() == [0, 1, 2, 3]
    page.keyboard.press("Escape")
    page.focus("#cells")
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert chosen() == [0, 1, 2]
    row = page.evaluate("columnsOfGrid()")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("cursor") == 2 + row
    page.keyboard.press("Space")
    assert chosen() == [0, 1, 2, 2 + row]
    press(page, "k")
    wait_until(page, "decisions.size === 4")
    assert sorted(line["index"] for line in logged_decisions(run)) == sorted([39, 36, 33, 39 - 3 * (2 + row)])
    page.keyboard.press("Home")
    page.keyboard.press("Enter")  # one sample
    assert page.evaluate("view") == "one" and page.is_visible("#view")
    press(page, "k")
    press(page, "a")
    assert len(logged_decisions(run)) == 6
    open_grid(page)
    press(page, "a")  # nothing is selected
    assert len(logged_decisions(run)) == 6 and "Select samples first" in page.text_content("#notice")
    page.click("#select-all")
    press(page, "o")
    page.keyboard.type("eel")
    page.keyboard.press("Enter")
    wait_until(page, "decisions.size > 6")
    assert {line["label"] for line in logged_decisions(run)[6:]} == {"eel"} and page.messages == []


def test_filters_search_and_jump(tmp_path, serve, page_of):
    run = make_audited_run(tmp_path / "run", shown=20)
    add_other_issues(run, pairs=[(39, 31)], outlier=2)
    page = page_of(serve(run).url)
    page.select_option("#suggestion", label="eel (6)")
    assert page.evaluate("samples.filter(isListed).every((sample) => sample.suggested === 'eel')")
    page.select_option("#filter", label="dog (6)")
    assert page.evaluate("samples.filter(isListed).length") == 6
    page.select_option("#filter", "")
    page.select_option("#suggestion", "")
    press(page, "/")
    page.keyboard.type("CAT/3")
    assert page.evaluate("samples.filter(isListed).map(({ index }) => index)") == [39, 36, 33, 30]
    page.keyboard.press("Escape")
    press(page, "k")
    assert shown_index(page) == 36  # the next one with this name
    page.fill("#name-search", "")
    page.keyboard.press("Escape")  # back to the samples
    press(page, "c")
    page.keyboard.type("ee")
    page.keyboard.press("Enter")
    assert shown_index(page) == 38 and page.evaluate("samples.filter(isListed).every(({ given }) => given === 'eel')")
    page.select_option("#filter", "")
    page.select_option("#kind", "outlier")
    assert shown_index(page) == 2
    page.select_option("#kind", "near_duplicate")
    assert shown_index(page) == 31  # 39 is decided
    open_grid(page)
    assert page.evaluate("cells.map(({ index }) => index)") == [31]
    press(page, "n")
    press(page, "g")
    assert shown_index(page) == 31 and page.evaluate("FILTERS.map((id) => byId(id).value)") == ["", "", ""]
    assert page.messages == []


def test_filters_of_the_grid_stay_while_one_of_its_samples_is_shown(run, serve, page_of):
    url = serve(run).url
    ann, page = page_of(url, reviewer="Ann"), page_of(url, reviewer="Ben")
    for _ in range(5):  # 39 to 35, of which 38 and 35 are eels
        press(ann, "k")
    client = Client(url)
    split = [[38, 2], [35, 5]]
    assert client.decide({**MANY, "items": split, "reviewer": "Cat"}, "/decide-many")[1]["refused"] == []
    wait_until(page, "split.size === 2")
    open_grid(page)
    page.select_option("#shown", "split")
    page.select_option("#pair", "")
    assert page.evaluate("cells.map(({ index }) => index)") == [38, 35]
    page.focus("#cells")
    page.keyboard.press("Enter")
    filters = "FILTERS.map((id) => byId(id).value)"
    assert shown_index(page) == 38 and page.evaluate(filters) == ["", "", "split"]
    press(page, "u")  # no opinion: the other two still disagree
    assert shown_index(page) == 35
    press(page, "g")
    assert page.evaluate("cells.map(({ index }) => index)") == [38, 35] and page.input_value("#pair") == ""
    press(page, "g")  # what the user chose stays
    assert page.evaluate(filters) == ["", "", "split"] and len(logged_decisions(run)) == 8
    page.select_option("#shown", "")
    open_grid(page)  # narrowed to a pair by the grid itself
    narrowed = page.evaluate(filters)
    assert narrowed[2] == "open" and "" not in narrowed
    page.keyboard.press("Enter")
    assert page.evaluate(filters) == narrowed
    press(page, "k")
    assert page.evaluate("samples[current].given === chosenClass('filter')")
    press(page, "g")
    assert page.evaluate(filters) == narrowed
    press(page, "g")
    assert page.evaluate(filters) == ["", "", ""] and page.messages == []


def test_grid_offers_what_comes_next(tmp_path, serve, page_of):
    run = make_audited_run(tmp_path / "run", suspects=3)
    page = page_of(serve(run).url)
    press(page, "k")
    press(page, "k")
    open_grid(page)
    page.select_option("#shown", "split")
    assert page.text_content("#none p").startswith("No sample that matches the filters is left.")
    assert not page.is_visible("#beyond")
    page.keyboard.press("Enter")  # "Clear filters" has the focus
    assert page.evaluate("cells.map(({ index }) => index)") == [37]
    page.keyboard.press("Control+a")
    press(page, "k")
    assert page.text_content("#none p").startswith("All 3 suspects are decided.") and not page.is_visible("#clear")
    box = page.locator("#beyond").bounding_box()
    assert box["y"] + box["height"] < page.viewport_size["height"]
    page.keyboard.press("Enter")
    assert page.evaluate("cells[0].is_issue") is False and not page.is_visible("#none") and page.messages == []


def test_pairs_are_walked_through_by_keyboard(run, serve, page_of):
    page = page_of(serve(run).url)
    open_grid(page)
    seen = []
    while page.evaluate("pairs.length"):
        seen.append(page.evaluate("cells[0].given"))
        page.keyboard.press("Control+a")
        press(page, "k")
        wait_until(page, "!saving && selected.size === 0")
    assert sorted(seen) == sorted(CLASSES) and len(logged_decisions(run)) == 35
    assert "All 35 suspects are decided. “Export” writes" in page.text_content("#none")
    assert page.is_visible("#none") and not page.is_visible("#clear")
    press(page, "g")
    assert "All 35 suspects are decided." in page.text_content("#none") and page.messages == []


def test_bulk_decisions_survive_a_kill(tmp_path, serve, page_of):
    run = make_audited_run(tmp_path / "run", 600, 600, CLASSES[:1] * 1 + ["dog"], suspects=600, text="a text")
    server = serve(run)
    page = page_of(server.url)
    open_grid(page)
    page.evaluate("selectRange(0, 249); drawSelection()")
    press(page, "a")
    wait_until(page, "decisions.size === 250")  # acknowledged
    assert len(logged_decisions(run)) == 250
    page.evaluate("choosePair(pairs[0]); selectRange(0, 249); drawSelection()")
    page.keyboard.press("k")
    server.kill()  # -9, in the middle
    server.wait()
    wait_until(page, "!saving")
    acknowledged = page.evaluate("[...decisions.keys()]")
    again = serve(run)
    saved = [line["index"] for line in logged_decisions(run)]  # every line is whole
    assert set(acknowledged) <= set(saved) and len(acknowledged) in (250, 500) and len(saved) == len(set(saved))
    left = Client(again.url)
    rest = [[index, None] for index in range(600) if index not in set(saved)][: 500 - len(saved)]
    status, answer = left.decide({**MANY, "items": rest, "action": "rest"}, "/decide-many")
    assert status == 200 and answer["refused"] == [] and len(logged_decisions(run)) == 500
    page = page_of(again.url)
    assert page.text_content("#progress").startswith("500 of 600 suspects decided")


def test_killed_server_has_saved_all_actions_that_it_answered(tmp_path, serve):
    run = make_audited_run(tmp_path / "run", 600, 600, text="a text")
    server, answered, several = serve(run), [], threading.Event()

    def decide_until_killed(client):
        for start in range(0, 500, 25):
            items = [[index, None] for index in range(start, start + 25)]
            try:
                status, answer = client.decide({**MANY, "items": items, "action": str(start)}, "/decide-many")
            except OSError:
                return
            assert status == 200 and answer["refused"] == []
            answered.extend(range(start, start + 25))
            if len(answered) >= 200:
                several.set()

    writer = threading.Thread(target=decide_until_killed, args=[Client(server.url)])
    writer.start()
    assert several.wait(TIMEOUT)
    server.kill()
    writer.join()
    serve(run)
    saved = [line["index"] for line in logged_decisions(run)]
    assert saved[: len(answered)] == answered and len(saved) <= len(answered) + 25


def test_invalid_actions_are_refused(run):
    with ReviewServer([ReviewState(run)], "a-token") as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        client = Client(server.url)
        wrong = [
            ({"items": "all"}, 400),
            ({"items": [39]}, 400),
            ({"items": [[39]]}, 400),
            ({"items": [[4, None]]}, 404),
            ({"items": [["39", None]]}, 404),
            ({"items": [[39, None]] * 5001}, 400),
            ({"items": [[39, None]] * 9000}, 413),
            ({"items": [[39, None]], "action": 3}, 400),
            ({"items": [[39, None]], "reviewer": "x" * 65}, 400),
            ({"items": [[39, None]], "decision": "delete"}, 400),
            ({"items": [[39, None]], "since": -1}, 400),
        ]
        for request, status in wrong:
            assert client.decide({**MANY, **request}, "/decide-many")[0] == status, request
        assert client.decide({**MANY, "items": [[39, 7], [38, None]]}, "/decide-many")[1]["refused"] == [39]
        assert [line["index"] for line in logged_decisions(run)] == [38]
        server.shutdown()


def test_thirty_writers_at_once(tmp_path, serve):
    run = make_audited_run(tmp_path / "run", 90, 90, text="a text")
    url, results, start = serve(run).url, [], threading.Barrier(30)

    def write(number):
        start.wait()
        mine = (number, number + 30, number + 60)
        results.extend(Client(url).decide({**KEEP, "index": index, "tab": str(number)})[0] for index in mine)

    writers = [threading.Thread(target=write, args=[number]) for number in range(30)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert results == [200] * 90 and sorted(line["index"] for line in logged_decisions(run)) == list(range(90))


def test_name_is_asked_once_and_saved_with_decisions(run, serve, page_of):
    url = serve(run).url
    page = page_of(url, reviewer=None)
    assert page.is_visible("#who") and page.evaluate("document.activeElement.id") == "who-name"
    page.keyboard.type("Ann <b>Ä</b>")
    page.keyboard.press("Enter")
    assert not page.is_visible("#who") and page.text_content("#reviewer") == "Ann <b>Ä</b>"
    press(page, "k")
    page.reload()
    wait_until(page, "samples.length > 0")
    assert not page.is_visible("#who")
    press(page, "a")
    assert [line["reviewer"] for line in logged_decisions(run)] == ["Ann <b>Ä</b>"] * 2
    other = page_of(serve(run, "--reviewer", "Bob").url, reviewer=None)
    assert not other.is_visible("#who") and other.text_content("#reviewer") == "Bob"
    press(other, "u")
    assert logged_decisions(run)[-1]["reviewer"] == "Bob"
    page.click("#reviewer")
    page.fill("#who-name", "")
    page.keyboard.press("Enter")
    assert page.text_content("#reviewer") == "No name" and page.messages == []


def test_name_is_changed_or_left_as_it_is(run, serve, page_of):
    url = serve(run).url
    page = page_of(url, reviewer="Anna")
    page.click("#reviewer")
    assert page.inner_text("#who-save") == "Save Enter"
    page.keyboard.type("Ben")  # replaces the old name, which is selected
    page.click("#who-cancel")
    assert not page.is_visible("#who") and page.text_content("#reviewer") == "Anna"
    page.click("#reviewer")
    page.keyboard.type("Ben")
    page.keyboard.press("Enter")
    assert page.text_content("#reviewer") == "Ben" and page.messages == []
    first = page_of(url, reviewer=None)
    assert first.inner_text("#who-save") == "Start Enter" and not first.is_visible("#who-cancel")


def test_undo_takes_back_only_decisions_of_the_reviewer(run, serve, page_of):
    url = serve(run).url
    page = page_of(url, reviewer="Anna")
    open_grid(page)
    page.keyboard.press("Control+a")
    press(page, "k")
    assert "12 kept. Press z to undo." in page.text_content("#notice")
    page.click("#reviewer")
    page.fill("#who-name", "Ben")
    page.keyboard.press("Enter")
    assert not page.is_visible("#notice") and page.is_disabled("#undo-all")
    press(page, "z")
    assert len(logged_decisions(run)) == 12  # all by Anna
    press(page, "g")
    press(page, "ArrowLeft")
    while not page.evaluate("decisions.has(samples[current].index)"):
        press(page, "ArrowLeft")
    assert page.is_disabled("#undo")
    press(page, "z")
    assert page.text_content("#notice") == "Only Anna can undo this decision. Decide again to change it."
    undo = {"decision": "undo", "since": 0, "tab": "t", "reviewer": "Ben"}
    status, answer = Client(url).decide({**undo, "index": 39, "over": 1})
    assert status == 409 and answer["error"] == "you have no decision to undo"
    many = {**undo, "items": [[39, 1], [36, 2]], "action": "all"}
    assert Client(url).decide(many, "/decide-many")[1]["refused"] == [39, 36]
    assert len(logged_decisions(run)) == 12
    press(page, "a")  # Ben changes the decision, and undoes that
    press(page, "z")
    assert [(line["decision"], line["reviewer"]) for line in logged_decisions(run)[12:]] == [
        ("accept", "Ben"),
        ("undo", "Ben"),
    ]
    page.click("#reviewer")
    page.fill("#who-name", "Anna")
    page.keyboard.press("Enter")
    press(page, "g")
    press(page, "z")
    assert [line["reviewer"] for line in logged_decisions(run)[14:]] == ["Anna"] * 12 and page.messages == []


def test_two_people_review_independently_and_see_where_they_disagree(run, serve, page_of):
    url = serve(run).url
    ann = page_of(url, reviewer="Ann")
    bob = page_of(serve(run).url, reviewer="Bob")  # another server on the same folder
    for key in "kka":  # 39, 38, 37
        press(ann, key)
    wait_until(bob, "decisions.size === 3")
    assert "kept as cat by Ann" in bob.text_content("#decided")
    bob.select_option("#shown", "mine")
    assert shown_index(bob) == 39 and bob.text_content("#decided") == ""  # not told what Ann decided
    for key in "kaa":  # equal, different, equal
        press(bob, key)
    assert shown_index(bob) == 36 and "left in these filters" in bob.text_content("#progress")
    assert (
        bob.text_content("#agreement")
        == "Agreement. Ann and Bob: 67% equal, Cohen’s κ 0.40, on 3 samples that both decided."
    )
    wait_until(ann, "split.size === 1")
    ann.select_option("#shown", "split")
    assert shown_index(ann) == 38
    assert ann.text_content("#opinions") == "Reviewers disagree. Ann: kept as eel · Bob: changed to cat"
    press(ann, "a")
    assert "No sample that matches the filters is left" in ann.text_content("#none")
    assert "100% equal, Cohen’s κ 1.00" in ann.text_content("#agreement")
    press(bob, "z")  # Bob's last decision alone
    log = DecisionLog(decisions_path(run)).decisions()
    assert (log[-1].index, log[-1].decision, log[-1].reviewer) == (37, "undo", "Bob")
    assert len(log) == 8 and bob.messages == []


def test_several_runs_share_a_page(tmp_path, serve, page_of):
    runs = [make_audited_run(tmp_path / name, 10, 10) for name in ("first", "second")]
    server = serve(*runs)
    page = page_of(server.url)
    assert page.locator("#runs option").all_text_contents() == ["first", "second"]
    press(page, "k")
    with page.expect_navigation():
        page.select_option("#runs", label="second")
    wait_until(page, "document.title === 'Review second'")
    press(page, "a")
    press(page, "u")
    assert [len(logged_decisions(run)) for run in runs] == [1, 2]
    assert Client(server.url).send("/samples?run=2")[0] == 404
    server.send_signal(signal.SIGINT)
    output = server.communicate(timeout=TIMEOUT)[0]
    for run in runs:
        assert f"saved in {run / 'review' / 'decisions.jsonl'}" in output


def test_options_for_one_run_and_bad_names_are_errors(tmp_path, capsys):
    runs = [str(make_audited_run(tmp_path / name, 3, 3)) for name in ("a", "b")]
    assert execute(["review", *runs, "--export", "x.csv"]) == 2
    assert "--export is for one run" in capsys.readouterr().err
    assert execute(["review", *runs, "--data", "photos"]) == 2
    for name in (" ", "x" * 65):
        assert execute(["review", runs[0], "--reviewer", name]) == 2
        assert "--reviewer needs a name" in capsys.readouterr().err


def test_browser_that_cannot_be_opened_is_no_error(run, monkeypatch, capsys):
    opened = threading.Event()

    def fail(url):
        opened.set()
        raise OSError("no browser")

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", fail)
    monkeypatch.setattr(ReviewServer, "serve_forever", lambda self: opened.wait(TIMEOUT))
    assert execute(["review", str(run)]) == 0 and opened.is_set()
    assert "suspects to review: http://127.0.0.1:" in capsys.readouterr().out
    assert execute(["review", str(run), "--no-browser"]) == 0
    printed = capsys.readouterr().out
    assert "Open this address in a browser on this machine; from another one, first run: ssh -L " in printed


def test_new_fields_are_in_the_page(run, serve):
    answer = Client(serve(run).url).get("/samples")[1]
    assert answer["runs"] == [run.name] and answer["reviewer"] is None and answer["agreement"] == answer["split"] == []
    assert json.dumps(answer)
