// The repair bench of a trap: each candidate becomes a button, in a new order at each visit, and says
// what the exercise's check makes of it. Without this script the verdict is folded below its code.
"use strict";
(() => {
  const shuffle = (items) => {
    for (let i = items.length - 1; i > 0; i--) {
      const j = Math.floor(Math.random() * (i + 1));
      [items[i], items[j]] = [items[j], items[i]];
    }
    return items;
  };

  function choice(item, said, press) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "repair-choice highlight";
    button.setAttribute("aria-expanded", "false");
    button.append(item.querySelector("pre > code"));
    button.addEventListener("click", () => press(button));
    item.replaceChildren(button, said);
  }

  function mount(root) {
    const list = root.querySelector("ol");
    let tries = 0;
    for (const item of list.children) {
      const right = "right" in item.dataset;
      const told = [...item.querySelector("details").children].slice(1);
      const said = document.createElement("div");
      said.className = "repair-said";
      said.setAttribute("role", "status");
      choice(item, said, (button) => {
        const open = button.getAttribute("aria-expanded") === "true";
        if (!open && !item.classList.contains("tried")) {
          tries += 1;
          if (right) told[0].append(` Found at try ${tries} of ${list.children.length}.`);
        }
        item.classList.add("tried");
        item.classList.toggle("right", right);
        button.setAttribute("aria-expanded", String(!open));
        said.replaceChildren(...(open ? [] : told));
      });
    }
    list.replaceChildren(...shuffle([...list.children]));
  }

  document.querySelectorAll("[data-repair]").forEach(mount);
})();
