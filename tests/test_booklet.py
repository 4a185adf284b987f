"""A stage on paper: page numbers in its contents, and folded code by choice."""

import pytest

from tools import booklet

PAGE = """<!doctype html><meta charset="utf-8"><title>Stage</title><style>
h2 {{ break-before: page }} #jb-print-toc a::after {{ content: attr(data-page) }}
html:not(.print-code) details.hide:not([open]) {{ display: none }}
</style><div id="jb-print-toc"><a href="#first">One</a> <a href="#trap-08.1">Two</a></div>
<h2 id="first">One</h2><p>text</p><details class="hide"><summary>Setup</summary>
<div style="height: 1200px">code</div></details><h2 id="trap-08.1">Two</h2>
<script>addEventListener("beforeprint", () => {{ const open = document.documentElement.classList
.contains("print-code"); document.querySelectorAll("details").forEach((d) => (d.open = open)) }})
</script>"""


@pytest.mark.parametrize(("code", "last"), [(False, 3), (True, 4)])
def test_the_contents_name_the_sheets_that_their_headings_stand_on(browser, tmp_path, code, last):
    (tmp_path / "page.html").write_text(PAGE.format())
    tab = browser.new_page()
    count = booklet.print_booklet(tab, tmp_path / "page.html", tmp_path / "out" / "x.pdf", code)
    found = tab.locator("#jb-print-toc a").evaluate_all("all => all.map((a) => a.dataset.page)")
    tab.close()
    assert found == ["2", str(last)]
    assert count >= last
    assert (tmp_path / "out" / "x.pdf").read_bytes().startswith(b"%PDF")


def test_a_name_of_a_pdf_is_read_as_text():
    assert booklet.unescaped(b"trap-08#2E1") == "trap-08.1"


def test_sheets_below_several_nodes_keep_their_order():
    pdf = (b"1 0 obj\n<< /Type /Pages /Count 3 /Kids [2 0 R 7 0 R] >>\n"
           b"2 0 obj\n<< /Type /Pages /Kids [5 0 R 4 0 R] >>\n<< /a [7 0 R /XYZ 1 2 0] >>")
    assert booklet.sheets(pdf) == [5, 4, 7]
    assert booklet.places(pdf) == {"a": 3}
