"""The notice that an open page shows while the cloud does not answer.

NiceGUI reconnects by itself and reloads the page after a restart of the cloud. This script adds two things: it greys
the page out, so that nobody takes old values for live ones; and if the session ended with the cloud, it reloads the
page, which leads to the login (NiceGUI alone would retry for ever).
"""

from __future__ import annotations

from cloud_server.dashboard.login import SESSION

OFFLINE_NOTICE = """
<style>
  .nicegui-content { transition: opacity .3s, filter .3s; }
  body:has(#popup[aria-hidden="false"]) .nicegui-content { opacity: .5; filter: grayscale(1); transition-delay: 2s; }
  #popup { max-width: min(30rem, calc(100vw - 2rem)); margin: 1rem; padding: 1rem 1rem 1rem 3.5rem; }
</style>
<script>
  addEventListener('DOMContentLoaded', () => {
    const popup = document.getElementById('popup');
    const [title, message] = popup.children;
    let polling;
    popup.setAttribute('role', 'alert');
    const checkSession = async () => {
      const answer = await fetch('$SESSION', {cache: 'no-store', signal: AbortSignal.timeout(5000)}).catch(() => null);
      if (answer?.status === 401) location.reload();
    };
    new MutationObserver(() => {
      clearInterval(polling);
      if (popup.ariaHidden !== 'false') return;
      title.textContent = 'The cloud does not answer.';
      message.textContent = `Last update: ${new Date().toLocaleTimeString()}. The page reconnects by itself.`;
      polling = setInterval(checkSession, 2000);
    }).observe(popup, {attributeFilter: ['aria-hidden']});
  });
</script>
""".replace("$SESSION", SESSION)
"""Style and script for the head of every page."""
