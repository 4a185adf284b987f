// What the pages that ask something share: elements, buttons, groups and radio buttons, inside of one
// element of the page, and entries in localStorage, which may be forbidden or hold anything.
"use strict";
window.dlsysForm = (root) => {
  function make(name, text = "", attributes = {}) {
    const element = document.createElement(name);
    element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  function written(name, text = "", attributes = {}) {
    const element = make(name, "", attributes);
    text.split("`").forEach((part, n) => element.append(n % 2 ? make("code", part) : part)); // every second part is code
    return element;
  }

  function button(text, press) {
    const found = make("button", text, { type: "button" });
    found.addEventListener("click", press);
    return found;
  }

  function group(title, ...parts) {
    const found = make("fieldset");
    found.append(written("legend", title), ...parts);
    return found;
  }

  function radio(name, value, text, kind = "option", say = make) {
    const label = make("label", "", { class: kind });
    label.append(make("input", "", { type: "radio", name, value }), say("span", text));
    return label;
  }

  const said = () => make("p", "", { role: "status", class: "said" });
  const chosen = (name) => root.querySelector(`input[name="${name}"]:checked`)?.value;

  function kept(key, whole) {
    try {
      const found = JSON.parse(localStorage.getItem(key) || "[]");
      return Array.isArray(found) ? found.filter(whole) : [];
    } catch {
      return [];
    }
  }

  function keep(key, entries) {
    try {
      localStorage.setItem(key, JSON.stringify(entries));
      return true;
    } catch {
      return false;
    }
  }

  return { make, written, button, group, radio, said, chosen, kept, keep };
};
