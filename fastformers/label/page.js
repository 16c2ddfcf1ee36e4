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
  const note = $('#note')?.value, at = $('[name="index"]')?.value;
  for (const o of parts) $(o).replaceWith($(o, page));
  if (note && at === $('[name="index"]')?.value) $('#note').value = note;               // a class was added: still the same text
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
const rank = (t, q) => { [t, q] = [t, q].map(o => o.replaceAll('_', ' ')); const w = ' ' + t; return t === q ? 0 : t.startsWith(q) ? 1 : w.includes(' ' + q) ? 2 : t.includes(q) ? 3 : q.split(/ +/).every(o => w.includes(' ' + o)) ? 4 : 5 };
const boxes = () => [...$('.classes').children], found = () => boxes().filter(b => !b.hidden);
function choose(one) {                                    // the class that Enter takes
  for (const b of boxes()) b.classList.toggle('chosen', b === one);
  one?.scrollIntoView?.({ block: 'nearest' });
  const q = $('#search').value.trim(), n = found().length;
  $('#found').textContent = (q && `${n} of ${boxes().length} classes`) + (one ? `${q && '; '}Enter: ${one.value}` : '');
}
function filter() {
  const q = $('#search').value.trim().toLowerCase(), all = boxes(), of = b => rank(b.value.toLowerCase(), q);
  all.forEach((b, i) => { b.dataset.at ??= i });
  all.sort((a, b) => (q && of(a) - of(b)) || a.dataset.at - b.dataset.at);
  for (const b of all) { b.hidden = of(b) === 5; $('.classes').append(b) }
  choose(q ? found()[0] : null);
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
    return search ? $('button.chosen')?.click() : $('#text').focus();
  }
  if (search && (e.key === 'ArrowDown' || e.key === 'ArrowUp')) {
    e.preventDefault();
    const all = found(), one = all[all.indexOf($('button.chosen')) + (e.key === 'ArrowDown' ? 1 : -1)];
    return one && choose(one);
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
