"""What each page has in its head: its style, and a script with which the keyboard sorts tables."""

from __future__ import annotations

STYLE = """
<style>
  :root { --accent: #0072B2; }
  .nicegui-content { padding: 1rem; max-width: 1400px; margin: 0 auto; align-items: stretch; }
  .q-header { background: #12405c; }
  .q-header .nicegui-link.nicegui-link.nicegui-link { color: #fff !important; }
  .q-header a { text-decoration: none; padding: .3rem .6rem; border-radius: .3rem; }
  .q-header a[aria-current] { background: rgb(255 255 255 / .2); }
  /* What is invisible does not jump; see `Page.show`. */
  .content { display: contents; } .building { visibility: hidden; } .loading { position: absolute; }
  .q-table__container { overflow-x: auto; }
  .in-row { color: #00659e; text-decoration: underline; padding: 0 .4rem; }
  .in-row[aria-pressed=true] { font-weight: bold; text-decoration: none; }
  .body--dark .in-row { color: #6cbcec; }
  tr:has(.in-row) { cursor: pointer; }
  .measures { flex-wrap: wrap; }
  /* It would flash at each request, and has no name for screen readers. */
  #q-loading-bar { display: none; }
  /* Its own stacking context: the backdrop is behind the dialog's texts for axe-core too. */
  .q-dialog__inner { position: relative; z-index: 0; }
  a:focus-visible, button:focus-visible, [tabindex]:focus-visible, summary:focus-visible {
    outline: 3px solid #E69F00; outline-offset: 2px; }
  .no-outline:focus-visible { box-shadow: 0 0 0 3px #E69F00; }
  .facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .6rem; }
  .facts dt { opacity: .75; font-size: .8rem; } .facts dd { margin: 0; font-size: 1.15rem; }
  .wide { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); gap: 1rem; }
  .stack { display: flex; flex-direction: column; justify-content: space-between; gap: 1rem; }
  .nicegui-link, .text-primary { color: #00659e !important; }
  .body--dark { --q-primary: #6cbcec !important; --q-positive: #4cc9a0 !important; --q-negative: #ff9b6b !important; }
  .body--dark .nicegui-link, .body--dark .text-primary { color: #6cbcec !important; }
  .body--dark :is(.bg-primary, .bg-positive, .bg-negative) {
    --q-primary: #00659e; --q-positive: #00704f; --q-negative: #b03f00; }
  .form { display: grid; grid-template-columns: minmax(0, 1fr); gap: 1rem; align-items: start; }
  @media (min-width: 900px) {
    .form { grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); }
    .form .side { position: sticky; top: 4.5rem; max-height: calc(100vh - 5rem); overflow-y: auto; }
  }
  .fields { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 16rem), 1fr)); gap: .8rem 1rem; }
  .help { font-size: .8rem; line-height: 1.25; opacity: .85; overflow-wrap: anywhere; padding-top: .15rem; }
  .help.wrong { opacity: 1; color: #B84300; font-weight: 500; } .body--dark .help.wrong { color: #FFB74D; }
  .q-btn[aria-disabled=true] { opacity: .6; cursor: not-allowed; }
  .q-notification__actions { color: inherit; }
  .warning { color: #B84300; } .body--dark .warning { color: #FFB74D; }
</style>
"""
SORTED_BY_KEYBOARD = """
<script>
  // Cells with buttons are made anew whenever the page changes: the one that had the focus has it again.
  let focused = null;
  for (const kind of ['focusin', 'pointerdown']) document.addEventListener(kind, ({target}) => {
    focused = target.matches('.in-row') ? target.id : null;
  });
  new MutationObserver(() => {
    if (!focused || document.activeElement !== document.body) return;
    document.getElementById(focused)?.focus({preventScroll: true});
  }).observe(document, {subtree: true, childList: true});
  new MutationObserver(() => {
    for (const head of document.querySelectorAll('th.sortable')) {
      const sorted = !head.classList.contains('sorted') ? 'none'
        : head.classList.contains('sort-desc') ? 'descending' : 'ascending';
      if (head.ariaSort !== sorted) Object.assign(head, {tabIndex: 0, ariaSort: sorted});
    }
  }).observe(document, {subtree: true, childList: true, attributes: true, attributeFilter: ['class']});
  document.addEventListener('keydown', event => {
    if (event.target.matches('th.sortable') && [' ', 'Enter'].includes(event.key)) {
      event.preventDefault();
      event.target.click();
    }
  });
</script>
"""
