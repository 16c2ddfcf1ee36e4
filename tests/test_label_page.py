"The page to label on: what it shows, whom it lets in, and that nothing wrong changes a label"
import json, random, re, shutil, socket, string, subprocess
import pandas as pd, pytest
from fastformers.cli import main
pytest.importorskip('fasthtml')
from fastcore.xml import to_xml
from starlette.testclient import TestClient
from fastformers.label import page
from fastformers.label.page import asset, classes, listen, make_app
from fastformers.label import session
from fastformers.label.session import none
from test_label_session import start, texts, tiny

token,at = 'the-token','http://127.0.0.1:8010'

@pytest.fixture
def open_page(start):
    "A function that opens the page of a session: the session, and a client that came by the link"
    def f(*args, **kw):
        s = start(*args, **kw)
        c = TestClient(make_app(s, token, 8010), base_url=at, headers=dict(origin=at), raise_server_exceptions=False, follow_redirects=False)
        assert c.get(f'/?token={token}').status_code==200
        s.next()
        return s,c
    return f

def part(html, tag): return re.search(f'<{tag}.*?</{tag}>', html, re.S)[0]

def test_a_label_is_a_form_and_its_answer_the_next_text(open_page):
    s,c = open_page()
    o = s.next()
    html = c.get('/').text
    assert o['text'] in part(html, 'article') and f'name="index" type="hidden" value="{o["index"]}"' in re.sub(r'<input ([^>]*)>', lambda m: '<input '+' '.join(sorted(m[1].split()))+'>', html).replace(' id="index"', '')
    r = c.post('/label', data=dict(index=o['index'], label='warm', note=' sure '))
    assert r.status_code==200 and o['text'] not in part(r.text, 'article') and '1 text labelled' in part(r.text, 'aside')
    assert (s.rows()[0]['text'],s.rows()[0]['note'])==(o['text'],' sure ')
    r = c.post('/undo'); assert o['text'] in part(r.text, 'article') and not s.rows()
    r = c.post('/skip', data=dict(index=o['index'])); assert o['text'] not in part(r.text, 'article') and not s.rows()
    r = c.post('/add', data=dict(name='<luke warm>')); assert r.status_code==200 and '&lt;luke warm&gt;' in r.text and '<luke' not in r.text

def test_texts_are_escaped_wherever_they_stand(open_page):
    evil = '<script>alert(1)</script>"\'><img src=x onerror=alert(1)>&amp;'
    df = pd.DataFrame({'text':[f'{evil}\x00\x1b {i}' for i in range(9)], evil[:40]:f'{evil}\x1b'})
    s,c = open_page(df, names=[evil, 'b'])
    html = c.get('/').text+c.post('/label', data=dict(index=s.next()['index'], label=s.labels[0])).text+c.post('/undo').text
    assert html.count('<script')==3 and '<img' not in html and '\x1b' not in html and '␛' in html and '&amp;amp;' in html

def test_the_order_of_classes_and_why_are_not_told(open_page):
    s,c = open_page(names=[f'class {o}' for o in 'abcdefghijkl'], batch=12)
    html = c.get('/').text
    assert 'random' not in html and 'typical' not in html and 'audit' not in html
    assert 'id="search"' in html and html.count('data-key')==1 and html.count('name="label"')==13
    assert to_xml(classes(s.labels, True, ranked=True)).count('data-key')==10

def test_nine_classes_and_none_have_keys_and_no_search(open_page):
    html = open_page(names=[*(f'class {o}' for o in 'abcdefghi'), none])[1].get('/').text
    assert 'id="search"' not in html and html.count('data-key')==10 and html.count('name="label"')==10

@pytest.mark.skipif(not shutil.which('node'), reason='needs node')
def test_an_exact_name_is_found_before_one_that_begins_so():
    rank = re.search('const rank = .*', asset('page.js'))[0]
    def found(names, typed):
        js = f"{rank} console.log({names}.sort((a, b) => rank(a, '{typed}') - rank(b, '{typed}')).join())"
        return subprocess.run(['node', '-e', js], capture_output=True, text=True).stdout.strip()
    assert found(['none of these', 'piano', 'say_no', 'x', 'no'], 'no')=='no,none of these,say_no,piano,x'
    for typed in ('credit limit','credit_limit'):
        assert found(['x', 'credit_limit_change', 'limit_credit', 'credit_limit'], typed)=='credit_limit,credit_limit_change,limit_credit,x'

@pytest.mark.skipif(not shutil.which('node'), reason='needs node')
def test_esc_shows_all_classes_and_a_refused_name_leaves_its_field(tmp_path):
    js = """const on = {}, field = id => ({ id, value: '', blur() {}, focus() {}, matches: s => s === 'input' });
    const button = value => ({ value, dataset: {}, classList: { toggle() {} } }), said = {};
    const search = field('search'), name = field('name'), found = {};
    const box = { children: ['alpha', 'beta', 'gamma'].map(button), append(b) { this.children = [...this.children.filter(o => o !== b), b] } };
    const parts = { '#search': search, '#name': name, '.classes': box, '#found': found, '#said': said };
    globalThis.location = { search: '' };
    globalThis.document = { activeElement: search, querySelector: s => parts[s] ?? null, addEventListener: (k, f) => { on[k] = f } };
    globalThis.FormData = class {}; globalThis.fetch = async () => ({ ok: false, text: async () => 'refused' });
    (0, eval)(SOURCE);
    const seen = () => box.children.filter(b => !b.hidden).map(b => b.value).join(' '), key = k => on.keydown({ key: k, preventDefault() { console.log(k, 'stops') } });
    search.value = 'ga'; on.input({ target: search }); console.log(seen());
    key('Escape'); console.log(seen()); key('1');
    name.value = 'Beta'; document.activeElement = name; key('Escape'); console.log(name.value === '');
    name.value = 'Beta'; on.submit({ preventDefault() {}, target: { action: '/add' } }).then(() => console.log(said.textContent, name.value === ''));"""
    (tmp_path/'page.js').write_text(js.replace('SOURCE', json.dumps(asset('page.js'))))
    out = subprocess.run(['node', tmp_path/'page.js'], capture_output=True, text=True)
    assert out.stdout.splitlines()==['gamma', 'alpha beta gamma', '1 stops', 'true', 'refused true'], out.stderr

def test_only_the_first_texts_are_called_so(open_page, monkeypatch):
    s,c = open_page()
    monkeypatch.setattr(type(s), 'busy', True); monkeypatch.setattr(type(s), 'next', lambda self, wait=True: None)
    assert 'The next texts are being chosen' in c.get('/').text
    s.standing = None; assert 'The first texts are being chosen' in c.get('/').text

def test_nothing_comes_from_elsewhere(open_page):
    s,c = open_page()
    for url in ('/','/page.css','/page.js'):
        r = c.get(url)
        assert r.status_code==200 and not re.findall(r'(?:https?:)?//[a-z]', r.text.replace('// ', '').replace('<!--', ''))
        assert r.headers['content-security-policy'].startswith("default-src 'none'") and 'unsafe' not in r.headers['content-security-policy']
    assert not re.search(r'\son\w+=|\sstyle=', c.get('/').text)
    cookie = TestClient(c.app, base_url=at).get(f'/?token={token}').headers['set-cookie']
    assert 'HttpOnly' in cookie and 'SameSite=Strict' in cookie

# Whom it lets in

def test_a_stranger_sees_nothing(open_page):
    s,c = open_page()
    new = TestClient(c.app, base_url=at, headers=dict(origin=at))
    for url in ('/', '/page.js', '/labels.csv', '/?token=', '/?token=the-tokem', '/../../etc/passwd'):
        r = new.get(url); assert r.status_code==403 and s.next()['text'] not in r.text and 'set-cookie' not in r.headers
    assert new.post(f'/undo?token={token}').status_code==403                 # the token of the link reads, and the cookie writes
    for host in ('example.org', '127.0.0.1', '127.0.0.1:80', 'localhost.example.org:8010', '127.0.0.1:8010.example.org', ''):
        assert c.get('/', headers=dict(host=host)).status_code==403
    assert c.get('/', headers=dict(host='localhost:8010')).status_code==200
    for path in ('/labels.csv', '/static/x', '/%2e%2e/labels.csv', '/page.css/..%2flabels.csv'): assert c.get(path).status_code in (403,404)

rng = random.Random(0)
def junk(n=12): return ''.join(rng.choice(string.printable+'\0é漢\u202e') for _ in range(rng.randrange(n)))
def hostile(index):
    "A random request with something wrong: method, url, headers, cookies, body"
    url = rng.choice(['/label','/skip','/undo','/add','/train','/page.js','/labels.csv','/'+re.sub(r'[^a-z/.%]', '', junk())])
    data = dict(index=rng.choice([index, -1, 10**6, 10**30, '9'*6000, '1e3', '', junk(), None]), label=rng.choice(['warm', 'x', '', junk(), none]), name=rng.choice(['new', junk()]), note=junk(40))
    headers,cookie,wrong = dict(origin=at),token,rng.choice(['token','origin','host','huge','chunked','values'])
    if wrong=='token': cookie = rng.choice(['', 'the-tokem', token[:-1], token+'x', 'é'])
    if wrong=='origin': headers['origin'] = rng.choice(['http://example.org','null','https://127.0.0.1:8010','http://127.0.0.1:80','http://localhost:8010',''])
    if wrong=='host': headers['host'] = rng.choice(['example.org','127.0.0.1','0.0.0.0:8010','localhost','[::1]:8010'])
    if wrong=='huge': data['note'] = 'x'*rng.choice([1<<14, 1<<17])
    if wrong=='values': url,data['index'],data['label'],data['name'] = rng.choice([('/label',index,'x',''), ('/label',10**6,'warm',''), ('/label','x','warm',''), ('/skip',10**6,'',''), ('/skip','','',''), ('/add','','','warm'), ('/add','','','  '), ('/train','','','')])
    return url,headers,cookie.encode(),{k:v for k,v in data.items() if v is not None},wrong

def test_a_thousand_hostile_requests_change_nothing(open_page, tmp_path):
    s,c = open_page()
    s.label(s.next()['index'], 'warm')
    path,before,o = tmp_path/'labels.csv',(tmp_path/'labels.csv').read_bytes(),s.next()
    app,seen = c.app,set()
    for _ in range(1000):
        url,headers,cookie,data,wrong = hostile(o['index'])
        new = TestClient(app, base_url=at, raise_server_exceptions=False)
        sent = {k:v.encode() for k,v in headers.items()} | {'cookie':b'label_8010='+cookie}
        body = '&'.join(f'{k}={v}' for k,v in data.items()).encode('utf-8','replace')
        kw = dict(content=iter([body])) if wrong=='chunked' else dict(content=body)
        r = new.post(url, headers=sent|{'content-type':b'application/x-www-form-urlencoded'}, **kw)
        assert 400<=r.status_code<500, (r.status_code, url, wrong, r.text[:80])
        seen.add(r.status_code)
    assert {400,403,404,411,413}<=seen
    for method in ('PUT','DELETE','PATCH','OPTIONS'): assert 400<=c.request(method, '/label').status_code<500
    assert path.read_bytes()==before and s.next()==o and s.labels==['warm','cold',none] and s.training is None

def test_a_file_that_cannot_be_written_keeps_the_text_on_the_screen(open_page, monkeypatch):
    s,c = open_page(); o = s.next()
    def full(*args): raise OSError(28, 'No space left on device')
    monkeypatch.setattr(type(s.file), '_write', full)
    r = c.post('/label', data=dict(index=o['index'], label='warm'))
    assert r.status_code==500 and 'No space left' in r.text and s.next()==o and not s.rows()

def test_errors_of_the_model_are_shown(open_page, monkeypatch):
    s,c = open_page()
    def fail(*args, **kw): raise RuntimeError('no memory')
    monkeypatch.setattr(session, 'choose_texts', fail)
    for _ in range(8): r = c.post('/label', data=dict(index=s.queue[0]['index'], label='warm'))
    s._thread.join()
    r = c.get('/')
    assert r.status_code==200 and 'no memory' in r.text and len(s.rows())==8

# The command

def command(*args, file=None): return main(['label', str(file), *map(str, args)])

@pytest.mark.parametrize('case,words', [('port','address already in use'), ('column','is not a column'), ('proc','cannot be written'), ('old','wram'), ('arch','nowhere'), ('target','share'), ('file','does not exist'), ('output','csv file')])
def test_a_mistake_is_one_line(tiny, tmp_path, capsys, monkeypatch, case, words):
    monkeypatch.setattr(page, 'serve', lambda *args: pytest.fail('the page opened'))
    pd.DataFrame(dict(text=texts)).to_csv(tmp_path/'texts.csv', index=False)
    pd.DataFrame(dict(text=texts[:2], label='wram')).to_csv(tmp_path/'old.csv', index=False)
    with listen(0) as sock:
        port = sock.getsockname()[1]
        more = dict(port=['--port', port], column=['--text-col', 'txet'], proc=['--output', '/proc/x/labels.csv'], old=['--labelled', tmp_path/'old.csv'], arch=['--arch', tmp_path/'nowhere'],
                    target=['--target', 90], output=['--output', tmp_path/'l.xlsx']).get(case, [])
        kw = dict(port=[], arch=['--port', 0]).get(case, ['--port', 0])
        assert command('--labels', 'warm,cold', '--output', tmp_path/'l.csv', *(['--arch', tiny] if case!='arch' else []), *kw, *more, file=tmp_path/('none.csv' if case=='file' else 'texts.csv'))==2
    assert words in (err := capsys.readouterr().err.lower()).splitlines()[-1], err

@pytest.mark.parametrize('more,words', [(['--labels', 'travel'], 'a file with a name a line'), (['--labels', 'names.txt'], 'a file with a name a line'), (['--target', 90], 'write .9'), (['--output', 'l.xlsx'], 'csv file'), (['--output', '/proc/x/l.csv'], 'cannot be written'), (['--arch', './nowhere'], 'nowhere')])
def test_a_wrong_flag_is_told_before_a_file_is_read(tmp_path, capsys, monkeypatch, more, words):
    from fastformers.commands import train
    monkeypatch.chdir(tmp_path); monkeypatch.setattr(train, 'read_table', lambda *args, **kw: pytest.fail('too late'))
    try: rc = command('--labels', 'warm,cold', *more, file='texts.csv')
    except SystemExit as e: rc = e.code
    assert rc==2 and words in capsys.readouterr().err

def test_names_of_classes_come_from_a_file(tmp_path):
    from fastformers.cli import make_parser
    (tmp_path/'names.txt').write_text('\ufeffcold\n\n no \nwarm, dry\n', encoding='utf-8')
    def read(o): return make_parser().parse_args(['label', 'x.csv', '--labels', str(o)]).labels
    assert read(tmp_path/'names.txt')==('cold','no','warm, dry')
    assert len(read(','.join(f'class {i}' for i in range(150))))==150

def test_without_the_extra_the_command_says_what_to_install(tmp_path, capsys, monkeypatch):
    from fastformers.commands import choose
    monkeypatch.setattr(choose, 'find_spec', lambda name: None)
    assert command('--labels', 'a,b', file=tmp_path/'x.csv')==2 and "pip install 'fastformers[label]'" in capsys.readouterr().err

def test_the_command_hands_all_flags_on(start, tiny, tmp_path, monkeypatch):
    got = []
    monkeypatch.setattr(page, 'serve', lambda s,sock: got.append((s, sock.getsockname(), sock.close())))
    pd.DataFrame(dict(body=texts, who='x')).to_csv(tmp_path/'texts.csv', index=False)
    pd.DataFrame(dict(body=texts[:3], label=['warm','cold','warm'], by='model')).to_csv(tmp_path/'old.csv', index=False)
    assert command('--labels', 'warm, cold', '--output', tmp_path/'l.csv', '--arch', tiny, '--port', 0, '--by', 'bo', '--target', .9, '--worth', 1, '--text-col', 'body', '--labelled', tmp_path/'old.csv', file=tmp_path/'texts.csv')==0
    s,(host,_),_ = got[0]
    assert (s.by,s.target,s.worth,s.text_col,[*s.names],s.context,host)==('bo',.9,.01,'body',['warm','cold'],['who'],'127.0.0.1')
    assert [o['by'] for o in s.rows()]==['model']*3
