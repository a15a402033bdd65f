"use strict";
// Filters the samples that did not pass. What is looked for is in the address too, so that it can be passed on.
(() => {
  const fields = ["find", "experiment", "status"].map((id) => document.getElementById(id));
  if (!fields[0]) return;
  const [find, experiment, status] = fields;
  const shown = document.getElementById("shown");
  const rows = [...document.querySelectorAll("#failures tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((row, place) => {
      const is = (!experiment.value || row.dataset.experiment === experiment.value)
        && (!status.value || row.dataset.status === status.value)
        && words.every((word) => texts[place].includes(word));
      row.hidden = !is;
      count += is ? 1 : 0;
    });
    shown.textContent = count + " of " + rows.length + " shown";
  };
  const read = () => {
    const wanted = new URLSearchParams(location.hash.slice(1));
    fields.forEach((field) => {
      field.value = wanted.get(field.id) ?? "";
      // A name that is none of the choices.
      if (field.selectedIndex < 0) field.value = "";
    });
    filter();
  };
  const write = () => {
    const wanted = new URLSearchParams();
    fields.filter((field) => field.value).forEach((field) => wanted.set(field.id, field.value));
    history.replaceState(null, "", "#" + wanted);
    filter();
  };
  find.addEventListener("input", write);
  experiment.addEventListener("change", write);
  status.addEventListener("change", write);
  addEventListener("hashchange", read);
  document.getElementById("filter").hidden = false;
  read();
})();
