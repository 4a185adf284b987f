// How the course's notebooks look and open in JupyterLab: each cell carries its role as a class,
// which reading.css colours; the start page runs when it opens; G runs to the next question.
// JupyterLab loads this as it loads a built extension, which is an object with `init` and `get`.
"use strict";
(() => {
  const here = document.currentScript.src;
  const facts = (cell) => cell.model.getMetadata("dlsys") ?? {};
  const tags = (cell) => cell.model.getMetadata("tags") ?? [];
  const view = (panel) => panel?.content?.model?.getMetadata("dlsys")?.view;

  function link(file) {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = new URL(file, here).href;
    document.head.append(style);
  }

  // ---- roles: a step's heading has the role of the cell that it stands over
  function mark(panel) {
    panel.content.node.classList.add("dlsys-notebook");
    const cells = panel.content.widgets;
    cells.forEach((cell, i) => {
      const role = facts(cell).role === "step" && cells[i + 1] ? facts(cells[i + 1]).role
        : facts(cell).role;
      const kinds = tags(cell).filter((tag) => ["guess", "measured", "plumbing"].includes(tag));
      cell.node.classList.toggle("dlsys-step", facts(cell).role === "step");
      for (const kind of [role, ...kinds].filter(Boolean)) cell.node.classList.add(`dlsys-${kind}`);
    });
  }

  // ---- the start page runs when it opens, once: only the course's own calls, whatever its name
  const OWN = /^(from dlsys\.(start_page|plan) import [\w, ]+\s+)?(next_step|progress_map|plan|[a-z]+_menu)\(\)$/;
  let begun = false;

  async function begin(app, panel) {
    const cells = panel.content.widgets;
    const code = cells.filter((cell) => cell.model.type === "code")
      .map((cell) => cell.model.sharedModel.getSource().trim());
    if (begun || facts(cells[0]).role !== "start" || !code.every((source) => OWN.test(source))) return;
    begun = true;
    await panel.sessionContext.ready;
    await app.commands.execute("notebook:run-all-cells");
    panel.content.activeCellIndex = 0;
    panel.content.node.querySelector(".jp-WindowedPanel-outer")?.scrollTo(0, 0);
  }

  // ---- the next question: runs what stands before it, the question itself, and no more
  async function nextQuestion(app) {
    const book = app.shell.currentWidget?.content;
    const cells = book?.widgets ?? [];
    const last = cells.findIndex((cell, i) => i >= book.activeCellIndex
      && tags(cell).includes("guess"));
    while (last >= 0 && book.activeCellIndex <= last) {
      const at = book.activeCellIndex;
      await app.commands.execute("notebook:run-cell-and-select-next");
      const failed = cells[at].model.outputs?.toJSON().some((out) => out.output_type === "error");
      if (failed || book.activeCellIndex === at) return;
    }
    if (last >= 0) {
      book.activeCellIndex = last;
      await book.scrollToItem?.(last, "center");
    }
  }

  function open(app) {
    const panel = app.shell.currentWidget;
    if (!panel?.context || !panel.content?.widgets) return;
    panel.context.ready.then(() => {
      if (!view(panel)) return;
      mark(panel);
      panel.content.model.cells.changed.disconnect(panel.dlsysMark);
      panel.dlsysMark = () => setTimeout(() => mark(panel));
      panel.content.model.cells.changed.connect(panel.dlsysMark);
      begin(app, panel);
    });
  }

  const plugin = {
    id: "dlsys-reading:plugin",
    autoStart: true,
    activate(app) {
      link("reading.css");
      app.commands.addCommand("dlsys:next-question", {
        label: "Run to the Next Question",
        execute: () => nextQuestion(app),
      });
      app.commands.addKeyBinding({
        command: "dlsys:next-question", keys: ["G"],
        selector: ".dlsys-notebook.jp-mod-commandMode:not(.jp-mod-readWrite) :focus",
      });
      app.restored.then(() => {
        open(app);
        app.shell.currentChanged.connect(() => open(app));
      });
    },
  };

  window._JUPYTERLAB ??= {};
  window._JUPYTERLAB["dlsys-reading"] = {
    init() {},
    get: async () => () => ({ default: plugin, __esModule: true }),
  };
})();
