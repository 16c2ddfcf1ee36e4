// Search works from a folder too: where the page is a file, a browser lets no worker start, so its script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inner = this.frame.contentWindow, outer = this
      inner.document.open()
      inner.document.write("<!doctype html><html><body></body></html>")
      inner.document.close()
      inner.postMessage = data => outer.dispatchEvent(Object.assign(new MessageEvent("message", { data }), {}))
      inner.importScripts = (...urls) => urls.reduce((last, src) => last.then(() => load(inner, src)), Promise.resolve())
      this.ready = load(inner, url)
    }
    postMessage(data) { this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))) }
    terminate() { this.frame.remove() }
    set onmessage(f) { this.addEventListener("message", f) }
  }
  const load = (win, src) => new Promise((done, fail) => {
    const o = win.document.createElement("script")
    Object.assign(o, { src, onload: done, onerror: fail })
    win.document.body.appendChild(o)
  })
}
