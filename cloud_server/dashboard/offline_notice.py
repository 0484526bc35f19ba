"""What a page says, and does, while its cloud does not answer.

NiceGUI connects again by itself and loads a page anew whose cloud was restarted. Two things are missing there: a page
that looks as it did is taken for a live one, and one whose session ended with the cloud is refused for ever.
"""

from __future__ import annotations

from cloud_server.dashboard.login import SESSION

AWAY = """
<style>
  .nicegui-content { transition: opacity .3s, filter .3s; }
  body:has(#popup[aria-hidden="false"]) .nicegui-content { opacity: .5; filter: grayscale(1); transition-delay: 2s; }
  #popup { max-width: min(30rem, calc(100vw - 2rem)); margin: 1rem; padding: 1rem 1rem 1rem 3.5rem; }
</style>
<script>
  addEventListener('DOMContentLoaded', () => {
    const popup = document.getElementById('popup');
    const [title, words] = popup.children;
    let asking;
    popup.setAttribute('role', 'alert');
    const ask = async () => {
      const answer = await fetch('$SESSION', {cache: 'no-store', signal: AbortSignal.timeout(5000)}).catch(() => null);
      if (answer?.status === 401) location.reload();
    };
    new MutationObserver(() => {
      clearInterval(asking);
      if (popup.ariaHidden !== 'false') return;
      title.textContent = 'The cloud does not answer.';
      words.textContent = `This is how things stood at ${new Date().toLocaleTimeString()}; the page goes on by itself.`;
      asking = setInterval(ask, 2000);
    }).observe(popup, {attributeFilter: ['aria-hidden']});
  });
</script>
""".replace("$SESSION", SESSION)
"""For the head of every page."""
