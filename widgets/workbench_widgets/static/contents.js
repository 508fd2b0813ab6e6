// @ts-check
/** Files made through Jupyter's contents API: requests that a run's supervisor reads, also while the kernel is busy. */

/** Creates an empty file through Jupyter's contents API.
 * @param {string} folder @param {string} name */
export async function dropFile(folder, name) {
  const node = document.getElementById("jupyter-config-data");
  if (!node) throw new Error("this page is not Jupyter's");
  const base = JSON.parse(node.textContent || "{}").baseUrl ?? "/";
  const xsrf = /(?:^|;\s*)_xsrf=([^;]*)/.exec(document.cookie)?.[1] ?? "";
  /** @param {string} path @param {object} model */
  const put = (path, model) =>
    fetch(`${base}api/contents/${path.split("/").map(encodeURIComponent).join("/")}`, {
      method: "PUT",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json", "X-XSRFToken": decodeURIComponent(xsrf) },
      body: JSON.stringify(model),
    });
  const file = { type: "file", format: "text", content: "" };
  let response = await put(`${folder}/${name}`, file);
  if (!response.ok) {
    await put(folder, { type: "directory" });
    response = await put(`${folder}/${name}`, file);
  }
  if (!response.ok) throw new Error(`Jupyter refused (HTTP ${response.status})`);
}
