const $ = (s, o = document) => o.querySelector(s), say = t => { $('#said').textContent = t };
const ended = 'The program behind this page has ended. Start it again with the same command: no label is lost.';
let busy = false, waits = null;

async function fetched(url, form) {                       // the page in the answer, or null
  try {
    const res = await fetch(url, form && { method: 'POST', body: new URLSearchParams(form) }), text = await res.text();
    if (res.ok) return new DOMParser().parseFromString(text, 'text/html');
    say(text);
  } catch { say(ended) }
  return null;
}
function show(page, parts) {
  for (const o of parts) $(o).replaceWith($(o, page));
  if (parts.includes('main')) ($('#search') || $('#text') || document.body).focus({ preventScroll: true });
  clearTimeout(waits);
  if ($('[data-poll]')) waits = setTimeout(poll, 700);
}
async function poll() {                                   // while texts are chosen, or a training runs
  const page = await fetched('/');
  if (page && !busy) show(page, $('main').dataset.poll ? ['main', 'aside'] : ['aside']);  // a half-written note stays
}
document.addEventListener('click', e => {                 // the second half of a double click is about the text before
  if (e.detail > 1 && e.target.closest('button')) e.preventDefault();
});
document.addEventListener('submit', async e => {
  e.preventDefault();
  if (busy) return;
  busy = true;
  const page = await fetched(e.target.action, new FormData(e.target, e.submitter));
  busy = false;
  if (!page) return e.target.action.endsWith('/add') && ($('#name').value = '');
  say($('#said', page).textContent);
  show(page, ['main', 'aside']);
});
const rank = (t, q) => t === q ? 0 : t.startsWith(q) ? 1 : (' ' + t.replaceAll('_', ' ')).includes(' ' + q) ? 2 : t.includes(q) ? 3 : 4;
function filter() {
  const q = $('#search').value.trim().toLowerCase(), box = $('.classes'), all = [...box.children], of = b => rank(b.value.toLowerCase(), q);
  all.forEach((b, i) => { b.dataset.at ??= i });
  all.sort((a, b) => (q && of(a) - of(b)) || a.dataset.at - b.dataset.at);
  all.forEach((b, i) => { b.hidden = of(b) === 4; b.classList.toggle('first', !!q && i === 0 && !b.hidden); box.append(b) });
  $('#found').textContent = q && `${all.filter(b => !b.hidden).length} of ${all.length} classes`;
}
document.addEventListener('input', e => { if (e.target.id === 'search') filter() });
document.addEventListener('keydown', e => {
  const at = document.activeElement, search = at.id === 'search', ctrl = e.ctrlKey || e.metaKey, undo = ctrl && e.key === 'z';
  if (e.key === 'Escape') {
    if (search || at.id === 'name') at.value = '';
    if (search) filter();
    return at.blur();
  }
  if (e.key === 'Enter' && (search || at.id === 'note')) {
    e.preventDefault();
    return search ? $('button.first')?.click() : $('#text').focus();
  }
  if ((at.matches('input') && !(search && !at.value)) || e.altKey || e.repeat || (ctrl && !undo)) return;
  const letters = { u: '#undo', s: '#skip', n: '#name', m: '#note', '/': '#search' };   // in the search field they are typed
  const o = $(undo ? '#undo' : /^[0-9]$/.test(e.key) ? `[data-key="${e.key}"]` : !search && letters[e.key] || 'none');
  if (o || /^[0-9]$/.test(e.key)) e.preventDefault();     // a digit that no button shows does nothing
  if (!o) return;
  o.matches('input') ? o.focus() : o.click();
});
if (location.search) history.replaceState(null, '', '/');
show(document, []);
($('#search') || $('#text'))?.focus({ preventScroll: true });
