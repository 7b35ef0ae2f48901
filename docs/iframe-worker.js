// Search in pages that are opened from a disk. Browsers refuse to start workers there, so a hidden frame runs the script.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = (answer) => {
        const data = structuredClone(answer);
        setTimeout(() => this.onmessage?.({data}));
      };
      this.ready = new Promise((resolve) => {
        const script = this.inside.document.createElement("script");
        script.onload = resolve;
        script.onerror = () => this.onerror?.(new Event("error"));
        script.src = url;
        this.inside.document.body.append(script);
      });
    }

    postMessage(message) {
      const data = structuredClone(message); // the script changes what it receives
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", {data})));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
