"The page to label on, by keyboard in a real browser: labels, undo, a new class, a killed server, training, and what axe finds"
import os, re, shutil, signal, subprocess, sys
from contextlib import contextmanager
import pandas as pd, pytest, torch
from transformers import AutoModel
from fastformers.cli import main
from fastformers.testing import tiny_arch, tiny_tok

pytest.importorskip('fasthtml')
api = pytest.importorskip('playwright.sync_api')
chromium = next(filter(None, map(shutil.which, ('chromium','chromium-browser','google-chrome'))), None)
if not chromium: pytest.skip('no Chromium here', allow_module_level=True)

words = 'red green blue loud quiet fast slow old new big small round flat warm cold'.split()
texts = [f'a {a} and {b} thing number {i}' for i,(a,b) in enumerate((a,b) for a in words for b in words if a!=b)]
def key(text): return '1' if 'warm' in text or 'red' in text or 'blue' in text else '2' if 'cold' in text or 'green' in text else '0'

@pytest.fixture(scope='module')
def browser():
    with api.sync_playwright() as p:
        b = p.chromium.launch(executable_path=chromium, args=['--no-sandbox'])
        yield b
        b.close()

@pytest.fixture
def serve(tmp_path):
    "A function that starts `fastformers label` on a file of its own, and returns the process and the link"
    torch.manual_seed(0)
    AutoModel.from_config(tiny_arch('bert', initializer_range=1.)).save_pretrained(tmp_path/'tiny'); tiny_tok('bert').save_pretrained(tmp_path/'tiny')
    pd.DataFrame(dict(text=texts, channel='app')).to_csv(tmp_path/'texts.csv', index=False)
    running = []
    def f(labels='warm,cold'):
        command = ['label', 'texts.csv', '--labels', labels, '--arch', 'tiny', '--port', '0']
        env = {**os.environ, 'FASTFORMERS_HOME':str(tmp_path/'cache'), 'PYTHONPATH':os.pathsep.join(sys.path)}
        running.append(subprocess.Popen([sys.executable, '-W', 'ignore', '-m', 'fastformers', *command], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True))
        return running[-1], re.search(r'http://\S+', running[-1].stdout.readline())[0]
    yield f
    for o in running: o.kill(); o.wait()

@contextmanager
def tab(browser, link, **kw):
    "A page that was opened by `link`; in the end it has asked nobody else, and its script made no error"
    page,errors,asked = browser.new_page(**kw),[],[]
    page.on('pageerror', lambda e: errors.append(str(e))); page.on('request', lambda r: asked.append(r.url))
    page.goto(link); page.wait_for_selector('#text', timeout=60_000)
    yield page
    page.close()
    assert not errors and all(o.startswith('http://127.0.0.1:') for o in asked), (errors, asked)

def press(page, *keys):
    "Press `keys`, and wait for the answer"
    with page.expect_response(lambda r: r.request.method=='POST') as r:
        for o in keys: page.keyboard.press(o) if len(o)==1 or o in ('Enter','Escape','Control+z') else page.keyboard.type(o)
    while page.evaluate('busy'): page.wait_for_timeout(10)
    return r.value.status

def test_an_afternoon(browser, serve, tmp_path):
    def rows(): return pd.read_csv(tmp_path/'labels.csv', keep_default_na=False)
    p,link = serve()
    with tab(browser, link) as page:
        assert 'token' not in page.url and page.locator('dd').inner_text()=='app'
        for i in range(30):
            text = page.locator('#text').inner_text()
            assert press(page, key(text))==200
            assert len(rows())==i+1 and rows().text[i]==text, 'on the disk before the next text'
        assert page.locator('#text').inner_text() not in {*rows().text} and '30 texts labelled' in page.locator('aside').inner_text()
        last = rows().text[29]
        press(page, 'u'); press(page, 'Control+z')
        assert len(rows())==28 and 'taken back' in page.locator('#said').inner_text()
        press(page, '2'); press(page, '2'); assert rows().text[29]==last
        press(page, 's'); assert len(rows())==30
        press(page, 'n', 'luke warm', 'Enter'); press(page, '3')
        assert rows().label[30]=='luke warm'
        page.keyboard.press('m'); page.keyboard.type('not sure, 1 2'); page.keyboard.press('Enter')
        press(page, '1'); assert rows().note[31]=='not sure, 1 2'
        p.send_signal(signal.SIGKILL); p.wait()
        page.keyboard.press('1'); page.locator('#said', has_text='has ended').wait_for()
    assert len(rows())==32
    p,link = serve()
    with tab(browser, link) as page:
        assert '32 texts labelled' in page.locator('aside').inner_text() and 'luke warm' in page.locator('form#form').inner_text()
        assert page.locator('#text').inner_text() not in {*rows().text}
        press(page, '1')
        page.locator('#train').click()
        page.wait_for_selector('#stage', timeout=20_000)
        press(page, '2')                                                                        # labelling goes on meanwhile
        page.wait_for_selector('pre', timeout=280_000)
        assert 'fastformers predict labels' in page.locator('pre').inner_text()
    assert main(['predict', str(tmp_path/'labels'), 'a warm and red thing'])==0

def test_a_double_click_labels_one_text(browser, serve, tmp_path):
    p,link = serve()
    with tab(browser, link) as page:
        page.locator('[data-key="1"]').click(click_count=2, delay=400)                          # slower than the answer
        page.wait_for_timeout(500)
        assert len(pd.read_csv(tmp_path/'labels.csv'))==1

def test_seventy_classes_by_a_few_letters(browser, serve, tmp_path):
    names = [f'{a}_{b}' for a in words[:9] for b in words[5:13]]
    p,link = serve(','.join(names))
    def rows(): return pd.read_csv(tmp_path/'labels.csv').label.tolist()
    def chosen(): return page.evaluate("document.querySelector('button.chosen')?.value")
    def shown(): return page.evaluate("[...document.querySelectorAll('.classes button:not([hidden])')].map(o => o.value)")
    with tab(browser, link) as page:
        assert page.evaluate('document.activeElement.id')=='search'
        first = next(o for o in shown() if o.endswith('_flat'))                                 # the likely ones first, or in the given order
        press(page, 'flat', 'Enter'); assert rows()==[first]
        press(page, 'quiet ro', 'Enter'); assert rows()==[first,'quiet_round']
        if page.locator('[data-key]').count()==1: page.keyboard.press('9'); assert page.locator('#search').input_value()=='' and len(rows())==2 # a plain order: no key
        page.keyboard.type('slow red'); assert shown()==['red_slow'] and page.locator('#found').inner_text()=='1 of 73 classes; Enter: red_slow'
        press(page, 'Enter')
        page.keyboard.type('loud_'); found = shown(); assert len(found)==8 and chosen()==found[0]
        for o in ('ArrowDown','ArrowDown','ArrowUp','ArrowDown'): page.keyboard.press(o)
        assert chosen()==found[2]
        press(page, 'Enter'); assert rows()[2:]==['red_slow',found[2]]
        page.keyboard.press('Enter'); page.keyboard.press('ArrowUp'); assert chosen() is None and len(rows())==4
        page.keyboard.type('zzz'); page.keyboard.press('Enter'); assert page.locator('#found').inner_text()=='0 of 73 classes'
        page.keyboard.press('Escape'); assert page.locator('.classes button:visible').count()==73
        page.keyboard.press('m'); page.keyboard.type('both'); page.keyboard.press('Enter')
        press(page, 'n', 'luke warm', 'Enter'); assert page.locator('#note').input_value()=='both' # the text is still the same
        press(page, 'luke', 'Enter')
        assert rows()[4]=='luke warm' and page.locator('#note').input_value()=='' and pd.read_csv(tmp_path/'labels.csv').note[4]=='both'
        page.keyboard.press('Escape'); press(page, 'u')
        for _ in range(3): press(page, 'Control+z')
        press(page, '0')
        assert rows()==[first,'none of these']

@pytest.mark.parametrize('how', [dict(), dict(color_scheme='dark'), dict(viewport=dict(width=380, height=700))], ids=['wide','dark','narrow'])
def test_axe_finds_no_fault(browser, serve, how):
    axe = pytest.importorskip('axe_playwright_python.sync_playwright').Axe()
    p,link = serve(','.join(f'{a} {b}' for a in words[:4] for b in words[5:9]))
    with tab(browser, link, **how) as page:
        press(page, '0'); page.keyboard.type('r')
        found = axe.run(page).response['violations']
        assert not found, [(o['id'], o['impact'], [n['html'][:100] for n in o['nodes'][:3]]) for o in found]
        assert page.evaluate('document.documentElement.scrollWidth<=innerWidth')
        page.locator('#text').focus()
        seen = ['text']
        for _ in range(7): page.keyboard.press('Tab'); seen.append(page.evaluate("document.activeElement.id||document.activeElement.value"))
        assert seen[:2]==['text','search'] and len({*seen})==8
