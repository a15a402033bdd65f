"use strict";
(() => {
  const text = document.getElementById("find");
  const experiment = document.getElementById("experiment");
  const status = document.getElementById("status");
  const shown = document.getElementById("shown");
  if (!text) return;
  const rows = [...document.querySelectorAll("#failures tbody tr")];
  const words = rows.map((row) => row.textContent.toLowerCase());
  const filter = () => {
    const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((row, place) => {
      const is = (!experiment.value || row.dataset.experiment === experiment.value)
        && (!status.value || row.dataset.status === status.value)
        && wanted.every((word) => words[place].includes(word));
      row.hidden = !is;
      count += is ? 1 : 0;
    });
    shown.textContent = count + " of " + rows.length + " shown";
  };
  text.addEventListener("input", filter);
  experiment.addEventListener("change", filter);
  status.addEventListener("change", filter);
  document.getElementById("filter").hidden = false;
  filter();
})();
