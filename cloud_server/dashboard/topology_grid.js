// The topology as cards that wrap: one for each edge, with a mark for each of its devices.
// Vue updates the elements in place, so a refresh takes neither a click nor the focus.
export default {
  template: `
    <div class="topo" @keydown="move" @focusin="point" @mouseover="point" @focusout="leave"
         @mouseleave="tip = null">
      <div class="topo-tools">
        <input v-model.trim="search" type="search" placeholder="Find an edge, agent or device number"
               aria-label="Find an edge, agent or device number">
        <button v-for="(mark, state) in marks" type="button" class="topo-chip" :aria-pressed="chosen.includes(state)"
                :title="mark.meaning" @click="choose(state)">
          <svg viewBox="0 0 16 16" aria-hidden="true" v-html="mark.svg"></svg>
          {{ state }} <b>{{ model.counts[state] }}</b>
        </button>
        <span v-if="model.hidden">{{ model.hidden }} more are not shown</span>
      </div>
      <div class="topo-cards" role="group" aria-label="Edges with a mark for each device; arrow keys move between them">
        <section v-for="card in cards" :key="card.key" class="topo-card" :class="'topo-' + card.state">
          <header>
            <svg v-if="card.state" viewBox="0 0 16 16" aria-hidden="true" v-html="marks[card.state].svg"></svg>
            <button v-if="card.state" type="button" class="topo-name" :data-key="card.key" :data-tip="card.tip"
                    :tabindex="stop === card.key ? 0 : -1" @click="$emit('open', card.key)">{{ card.name }}</button>
            <span v-else class="topo-name">{{ card.name }}</span>
            <span class="topo-word">{{ card.word }}</span>
          </header>
          <p v-for="line in card.lines">{{ line }}</p>
          <div class="topo-marks" :class="{ 'topo-numbered': card.numbered }">
            <button v-for="device in card.shown" :key="device.key" type="button" class="topo-mark"
                    v-memo="[device.tip, device.state, device.age, device.flies, card.numbered, stop === device.key]"
                    :data-key="device.key" :data-state="device.state" :data-tip="device.tip" :aria-label="device.tip"
                    :tabindex="stop === device.key ? 0 : -1" @click="$emit('open', device.key)">
              <svg viewBox="0 0 16 16" aria-hidden="true" v-html="marks[device.state].svg + badge(device)"></svg>
              <small v-if="card.numbered && device.key.startsWith('seat ')" aria-hidden="true">{{ device.name }}</small>
            </button>
          </div>
        </section>
      </div>
      <p v-if="!cards.length" class="topo-none">Nothing matches.</p>
      <div v-if="tipText" class="topo-tip" aria-hidden="true" :style="tip.style">{{ tipText }}</div>
    </div>
  `,
  props: { model: Object, marks: Object },
  emits: ["open"],
  data: () => ({ search: "", chosen: [], last: null, held: null, tip: null }),
  computed: {
    cards() {
      const word = this.search.toLowerCase().replace(/^device(\s+|$)/, "");
      // A device with the focus stays, also once its state is another one.
      const state = ({ key, state }) => !this.chosen.length || this.chosen.includes(state) || key === this.held;
      const isNumber = /^\d+$/.test(word);
      const has = (text) => text.toLowerCase().includes(word);
      return this.model.cards
        .map((card) => {
          const all = !word || (!isNumber && has(card.name));
          const named = ({ name, host }) => all || (isNumber ? name === word : has(`${name} ${host}`));
          return { ...card, shown: card.devices.filter((device) => state(device) && named(device)), all };
        })
        .filter((card) => card.shown.length || (card.all && !this.chosen.length));
    },
    // The label of the element at the pointer or the focus, as it is now.
    tipText() {
      const all = this.tip ? this.cards.flatMap((card) => [card, ...card.shown]) : [];
      return all.find(({ key }) => key === this.tip.key)?.tip;
    },
    // The one element that Tab reaches: the last one that had the focus, as long as it is shown.
    stop() {
      const keys = this.cards.flatMap((card) => [...(card.state ? [card.key] : []), ...card.shown.map((d) => d.key)]);
      return keys.includes(this.last) ? this.last : keys[0];
    },
  },
  methods: {
    choose(state) {
      this.chosen = this.chosen.includes(state) ? this.chosen.filter((s) => s !== state) : [...this.chosen, state];
    },
    // The age of a used update in its mark, and a dot at the corner while a visit is in flight.
    badge({ age, flies }) {
      const text = age == null ? "" : `<text x="8" y="11.2" text-anchor="middle">${Math.min(age, 99)}</text>`;
      return text + (flies ? '<circle cx="14.5" cy="1.5" r="2.8"/>' : "");
    },
    point({ target, type }) {
      const found = target.closest?.("[data-tip]");
      if (type === "focusin" && found) this.last = this.held = found.dataset.key;
      if (!found) return (this.tip = null);
      const box = found.getBoundingClientRect();
      const left = Math.max(8, Math.min(box.left, innerWidth - 280));
      const below = box.bottom + 120 < innerHeight;
      const place = below ? `top:${box.bottom + 4}px` : `bottom:${innerHeight - box.top + 4}px`;
      this.tip = { key: found.dataset.key, style: `left:${left}px;${place}` };
    },
    leave() {
      this.tip = this.held = null;
    },
    move(event) {
      if (event.key === "Escape") this.tip = null;
      const from = event.target.closest("[data-key]");
      if (!from || event.ctrlKey || event.altKey || event.metaKey) return;
      const all = [...this.$el.querySelectorAll("[data-key]")];
      const at = all.indexOf(from);
      const to = {
        ArrowRight: () => all[at + 1],
        ArrowLeft: () => all[at - 1],
        ArrowDown: () => this.nearest(from, all, 1),
        ArrowUp: () => this.nearest(from, all, -1),
        Home: () => all[0],
        End: () => all.at(-1),
      }[event.key];
      if (!to) return;
      event.preventDefault();
      to()?.focus();
    },
    // The element of the next row that is closest from left to right.
    nearest(from, all, way) {
      const { top, bottom, left } = from.getBoundingClientRect();
      const distance = (element) => {
        const box = element.getBoundingClientRect();
        const rows = way > 0 ? box.top - bottom : top - box.bottom;
        return rows < -1 ? Infinity : Math.max(rows, 0) + Math.abs(box.left - left) * 0.5;
      };
      const [best, found] = all.reduce(
        (least, element) => {
          const now = element === from ? Infinity : distance(element);
          return now < least[0] ? [now, element] : least;
        },
        [Infinity, undefined],
      );
      return found;
    },
  },
};
