/* Search from the disk: browsers start no worker for a page that is a file, so its script runs in a hidden frame. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe");
    #early = [];
    #ready = false;

    constructor(url) {
      super();
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const inside = this.#frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) => Promise.all(urls.map((each) => this.#load(each)));
      this.#load(url).then(() => {
        this.#ready = true;
        this.#early.forEach((data) => this.postMessage(data));
      });
    }

    #load(url) {
      const script = this.#frame.contentDocument.createElement("script");
      script.src = url;
      return new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = reject;
        this.#frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      if (this.#ready) this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      else this.#early.push(data);
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
