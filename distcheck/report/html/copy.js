// Adds buttons that copy a command or a whole finding; without script, the page lacks only these.
for (const source of document.querySelectorAll("pre.command, section.finding")) {
  const whole = source.matches("section");
  const text = (whole ? source.innerText : source.textContent).trim();
  const button = document.createElement("button");
  button.type = "button";
  const name = whole ? "Copy finding" : "Copy";
  button.textContent = name;
  button.setAttribute("aria-label", whole ? "Copy finding " + source.id : "Copy command");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.body.appendChild(document.createElement("textarea"));
      area.value = text;
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = name; }, 1500);
  });
  if (whole) source.querySelector("h3").after(button);
  else {
    const line = document.createElement("div");
    line.className = "line";
    source.replaceWith(line);
    line.append(source, button);
  }
}
