#!/usr/bin/env python3
"""Counts the test results of tests/run and prints them as its last line.

Usage: tally.py DIR, with one folder a build in DIR: ctest.xml (ctest's JUnit report) and googletest/PROGRAM.xml (each
GoogleTest program's own). A program with a report of its own counts by its cases, any other ctest entry as one. A
program that failed without a failing case (a crash, a time-out, a sanitizer's finding at exit) adds one failure.
Exit code 1 if anything failed or nothing ran.
"""
import pathlib
import sys
import xml.etree.ElementTree as ET


def googletest_counts(path):
    """(passed, failed, skipped) of a GoogleTest report; None if it is not whole, as after a crash."""
    try:
        root = ET.parse(path).getroot()
    except (ET.ParseError, OSError):
        return None
    passed = failed = skipped = 0
    for case in root.iter("testcase"):
        if case.find("failure") is not None:
            failed += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def skip_reason(entry):
    """Why ctest did not run an entry: "SKIP_RETURN_CODE=77", or "Unable to find executable", which is a failure."""
    skipped = entry.find("skipped")
    return skipped.get("message", "") if skipped is not None else ""


def main():
    results = pathlib.Path(sys.argv[1])
    passed = failed = skipped = 0
    failures = []
    for report in sorted(results.glob("*/ctest.xml")):
        build = report.parent.name
        for entry in ET.parse(report).getroot().iter("testcase"):
            name, status = entry.get("name"), entry.get("status")
            own = googletest_counts(report.parent / "googletest" / f"{name}.xml")
            if own is not None:
                passed, failed, skipped = passed + own[0], failed + own[1], skipped + own[2]
                if status == "fail" and own[1] == 0:
                    failed += 1
                if status == "fail":
                    failures.append(f"{build}: {name}")
            elif status == "run":
                passed += 1
            elif status == "disabled" or (status == "notrun" and skip_reason(entry).startswith("SKIP_")):
                skipped += 1
            else:
                failed += 1
                failures.append(f"{build}: {name}")
    for failure in failures:
        print(f"    failed: {failure}")
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
