// @ts-check
/** Colours of the page's theme, read from the style sheet, and a call when the theme changes. */

/** @typedef {{ink: string, muted: string, grid: string, surface: string, accent: string,
 *   bad: string, font: string, series: string[]}} Theme */

/** @param {HTMLElement} root @returns {Theme} */
export function readTheme(root) {
  const style = getComputedStyle(root);
  const read = (/** @type {string} */ name) => plain(style.getPropertyValue(name).trim());
  return {
    ink: read("--wb-ink"),
    muted: read("--wb-muted"),
    grid: read("--wb-grid"),
    surface: read("--wb-surface"),
    accent: read("--wb-accent"),
    bad: read("--wb-bad"),
    font: style.fontFamily,
    series: [1, 2, 3, 4, 5, 6, 7, 8].map((index) => read(`--wb-series-${index}`)),
  };
}

/** @type {Map<string, number[]>} */
const pixels = new Map();

/** Red, green, blue and alpha of any CSS colour, as the browser paints it: plotly.js reads
 * neither color-mix() nor color(). @param {string} color */
function paint(color) {
  const known = pixels.get(color);
  if (known) return known;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d");
  if (!context) return [128, 128, 128, 255];
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  const pixel = [...context.getImageData(0, 0, 1, 1).data];
  pixels.set(color, pixel);
  return pixel;
}

/** @param {string} color */
function plain(color) {
  const [red, green, blue, alpha] = paint(color);
  return `rgba(${red}, ${green}, ${blue}, ${(alpha / 255).toFixed(3)})`;
}

/** The same colour, transparent. @param {string} color @param {number} alpha */
export function fade(color, alpha) {
  const [red, green, blue] = paint(color);
  return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
}

/** Calls back when JupyterLab's theme changes; returns what ends that.
 * @param {() => void} changed */
export function watchTheme(changed) {
  let timer = 0;
  const observer = new MutationObserver(() => {
    clearTimeout(timer);
    timer = window.setTimeout(changed, 150); // the theme's style sheet follows its attribute
  });
  observer.observe(document.body, {
    attributes: true,
    attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "data-theme"],
  });
  return () => observer.disconnect();
}
