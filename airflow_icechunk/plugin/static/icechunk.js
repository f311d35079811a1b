// Copy buttons, the theme of Airflow, and links that lead out of the frame.
"use strict";

// The frame has the origin of Airflow; a page of its own has no parent.
function airflowDocument() {
  if (window.parent === window) return null;
  try {
    return window.parent.document;
  } catch {
    return null;
  }
}

function followTheme(airflow) {
  const root = airflow.documentElement;
  const follow = () => {
    const isDark = root.classList.contains("dark");
    const isLight = root.classList.contains("light");
    if (isDark || isLight) document.documentElement.dataset.theme = isDark ? "dark" : "light";
  };
  follow();
  new MutationObserver(follow).observe(root, { attributeFilter: ["class"] });
}

function leaveFrame(event, airflow) {
  const link = event.target.closest("a[data-airflow]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  // The frame may not navigate Airflow, but a link of Airflow's own page may.
  const outside = airflow.createElement("a");
  outside.href = link.href;
  outside.hidden = true;
  airflow.body.append(outside);
  outside.click();
  outside.remove();
}

async function copy(button) {
  const text = button.dataset.copy;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without HTTPS there is no clipboard.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.classList.add("copied");
  setTimeout(() => button.classList.remove("copied"), 1200);
}

const airflow = airflowDocument();
if (airflow) {
  followTheme(airflow);
  document.addEventListener("click", (event) => leaveFrame(event, airflow));
}
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button) copy(button);
});
