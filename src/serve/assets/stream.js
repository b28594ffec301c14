/* The stream of events, with a header that EventSource cannot send. It is closed while the page is hidden, so that
 * nothing is asked of the engine for a page that nobody sees, and opened again with growing pauses after a failure. */

const token = {
  get: () => sessionStorage.getItem('dibs-token') || '',
  set: value => (value ? sessionStorage.setItem('dibs-token', value) : sessionStorage.removeItem('dibs-token')),
};
export { token };

export const headers = more => ({ ...(token.get() ? { Authorization: 'Bearer ' + token.get() } : {}), ...more });

export class Stream {
  constructor(url, on) {
    Object.assign(this, { url, on, pause: 500, controller: null, timer: 0 });
    document.addEventListener('visibilitychange', () => (document.hidden ? this.stop('paused') : this.start()));
  }

  start() {
    this.stop();
    if (document.hidden) return this.on.state('paused');
    this.controller = new AbortController();
    this.run(this.controller);
  }

  stop(state) {
    clearTimeout(this.timer);
    this.controller?.abort();
    this.controller = null;
    if (state) this.on.state(state);
  }

  async run(mine) {
    let refused = false;
    this.on.state('connecting');
    try {
      const response = await fetch(this.url(), { headers: headers({ Accept: 'text/event-stream' }), signal: mine.signal, cache: 'no-store' });
      if (response.status === 401 || response.status === 403) refused = true;
      if (!response.ok) throw new Error('the server answered ' + response.status);
      await this.read(response.body.pipeThrough(new TextDecoderStream()).getReader(), mine);
      throw new Error('the stream has ended');
    } catch (e) {
      if (mine.signal.aborted) return;
      if (refused) return this.on.refused();
      this.on.state('lost', e.message);
      this.timer = setTimeout(() => this.start(), this.pause);
      this.pause = Math.min(this.pause * 2, 15000);
    }
  }

  /* Events end with an empty line. A whole frame may come in many pieces: they are joined once. */
  async read(reader, mine) {
    let pieces = [];
    for (;;) {
      const { done, value } = await reader.read();
      if (done || mine.signal.aborted) return;
      if (!value.includes('\n\n') && !(value[0] === '\n' && pieces.at(-1)?.endsWith('\n'))) {
        pieces.push(value);
        continue;
      }
      const events = (pieces.join('') + value).split('\n\n');
      pieces = [events.pop()];
      for (const event of events) this.take(event);
    }
  }

  take(event) {
    const data = event.split('\n').filter(line => line.startsWith('data:')).map(line => line.slice(5));
    if (!data.length) return; // a comment: the connection lives
    this.pause = 500;
    this.on.frame(JSON.parse(data.join('\n')));
  }
}
