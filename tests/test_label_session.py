"A labelling session loses no label, mixes nobody's work up, and says what others did to its file"
import os, re, resource, signal, subprocess, sys, time
from threading import Event
import numpy as np, pandas as pd, pytest, torch
from transformers import AutoModel
from fastformers.data.block import classifier_dls
from fastformers.data.rows import Rows
from fastformers.label import session as module
from fastformers.label.choose_texts import choose_texts, order_of
from fastformers.label.file import LabelFile
from fastformers.label.command import Command
from fastformers.label.forecast import standing
from fastformers.label.session import LabelSession, none
from fastformers.label.vectors import TextVectors
from fastformers.testing import tiny_arch, tiny_tok
from fastformers.text.corpora import intents

words = 'red green blue loud quiet fast slow old new big small round flat warm cold'.split()
texts = [f'a {a} and {b} thing number {i}' for i,(a,b) in enumerate((a,b) for a in words for b in words if a!=b)]

# A model that takes no time: what a real one chooses and forecasts is tested on its own pages, and by the processes below

def draw(texts, n, df, arch, text_col, names, seed):
    "Choose texts at random, a quarter of them to be held out, as `choose_texts` draws them"
    o = texts[text_col]
    order,random = order_of(o, df[text_col], seed)
    audit,rest = order[random],order[~random]
    k = min(max(n//4, n-len(rest)), len(audit))
    at = np.random.default_rng(len(df)).permutation([*audit[:k], *rest[:n-k]]).astype(int)
    return pd.DataFrame({text_col:o[at].values, 'why':'drawn', 'audit':np.isin(at, audit), 'index':at})

class Model:
    "The standing of a model that knows nothing"
    stop = ''
    def __init__(self, df, **kw):
        self.labels = sorted({*df.label})
        self.clf = self if len(self.labels)>1 else None
    def __str__(self): return 'accuracy .5'
    def scores(self, x): return np.random.default_rng(0).random((len(x), len(self.labels)))

@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
    "The directory of a tiny network, of which texts have vectors that differ"
    d = tmp_path_factory.mktemp('tiny')
    torch.manual_seed(0)
    AutoModel.from_config(tiny_arch('bert', initializer_range=1.)).save_pretrained(d); tiny_tok('bert').save_pretrained(d)
    return d

@pytest.fixture
def start(tmp_path, monkeypatch):
    "A function that opens a session on one file of a folder of its own"
    monkeypatch.setenv('FASTFORMERS_HOME', str(tmp_path/'cache'))
    monkeypatch.setattr(module, 'choose_texts', draw); monkeypatch.setattr(module, 'standing', Model)
    made = []
    def f(texts=texts, names=('warm','cold'), **kw):
        made.append(LabelSession(texts, names, tmp_path/'labels.csv', **dict(batch=8)|kw))
        return made[-1]
    f.path = tmp_path/'labels.csv'
    yield f
    for s in made:
        if s._thread: s._thread.join(30) # or it would go on beside the next test, with the real functions

def answer(text): return 'warm' if 'warm' in text else 'cold' if 'cold' in text else none
def work(s, n, answer=answer):
    for _ in range(n):
        o = s.next()
        s.label(o['index'], answer(o['text']))
def rows(path): return pd.read_csv(path, keep_default_na=False, dtype=str)

def test_each_label_is_on_the_disk_and_a_session_goes_on(start):
    s,seen = start(),[]
    for i in range(12):
        o = s.next(); seen.append(o['text'])
        s.label(o['index'], answer(o['text']), note='sure' if i==0 else '')
        df = rows(start.path)
        assert len(df)==i+1 and df.text.iloc[-1]==o['text'] and df.label.iloc[-1]==answer(o['text'])
    assert list(df)==['text','label','audit','by','note','time'] and df.note[0]=='sure' and {*df.audit}=={'True','False'}
    again = start()
    assert len(again.table())==12 and again.table().audit.dtype==bool
    assert again.next()['text'] not in seen
    work(again, 5)
    assert rows(start.path).text.is_unique

def test_a_quarter_is_random_and_nothing_on_screen_tells(start):
    names = [f'class {o}' for o in 'abcdefghijkl']
    s,r = start(names=names, batch=20),np.random.default_rng(0)
    plain,audit = [],[]
    for i in range(120):
        o = s.next()
        assert {*o}=={'index','text','context','labels','ranked'} and sorted(o['labels'])==sorted([*names,none])
        plain.append(o['labels'][:12]==names)
        s.label(o['index'], names[r.integers(12)])
        audit.append(rows(start.path).audit.iloc[-1]=='True')
    plain,audit = np.array(plain[40:]),np.array(audit)
    assert .2<audit.mean()<.3
    assert plain[audit[40:]].all(), 'random texts show the classes in the order in which they were given'
    assert .1<plain[~audit[40:]].mean()<.6, 'so do some of the others, and not all'
    first = [audit[i:i+20].nonzero()[0].tolist() for i in range(0, 100, 20)]
    assert len({*map(tuple, first)})==5, 'they stand at other places in each batch'

def test_undo_takes_back_your_own_last_step(start):
    s = start()
    work(s, 3)
    anna = start(by='anna'); work(anna, 1)
    before = rows(start.path).text.tolist()
    text = s.undo()
    assert text==before[2] and rows(start.path).text.tolist()==[*before[:2], before[3]] and s.next()['text']==text
    s.label(s.next()['index'], 'cold')
    aside = s.next(); s.skip(aside['index'])
    assert s.next()['text']!=aside['text'] and s.undo()==aside['text']==s.next()['text']
    for _ in range(3): s.undo()
    with pytest.raises(ValueError, match='no label of yours'): s.undo()
    assert rows(start.path).by.tolist()==['anna']

def test_after_undo_the_classes_stand_as_they_did(start):
    s = start(names=[f'class {o}' for o in 'abcdefghijkl'])
    while (o := s.next())['labels']==s.labels: s.label(o['index'], o['labels'][len(s.rows())%2])
    s.label(o['index'], none)
    s.undo(); assert s.next()==o and o['ranked']

def test_undo_leaves_what_another_session_of_the_same_name_wrote(start):
    a,b = start(),start()
    work(a, 1); work(b, 1)
    first,second = rows(start.path).text
    assert a.undo()==first and rows(start.path).text.tolist()==[second]
    with pytest.raises(ValueError, match='no label of yours'): a.undo()
    assert start(texts[:1]).undo()==second                  # after a restart, also a text that is not in its pool

def test_another_random_text_takes_the_place_of_one_that_is_set_aside(start, tiny, monkeypatch):
    monkeypatch.setattr(module, 'choose_texts', choose_texts)
    s = start(arch=tiny)
    while len(s.rows())<60:
        o = s.next()
        s.skip(o['index']) if s.queue[0]['audit'] and len(s.skips.rows)<12 else s.label(o['index'], 'cold')
    assert len(s.skips.rows)==12 and .2<=s.table().audit.mean()<=.3

def test_a_training_shows_its_steps_and_stops_with_the_command_that_goes_on(tmp_path):
    intents(100)[['text','label']].to_csv(tmp_path/'rows.csv', index=False)
    args = ['classify', str(tmp_path/'rows.csv'), '--arch', 'wiki-mini', '--epochs', '200', '--output', str(tmp_path/'out'), '--force']
    t = Command(args)
    while ' left' not in t.stage: assert t.process.poll() is None, t.verdict; time.sleep(.1)
    assert re.fullmatch(r'\d+ of \d+, [\d:]+ left', t.stage), t.stage
    says = t.stop()
    assert t.process.poll() and says==f"fastformers {' '.join(args[:-1])} --resume" and t.stop()=='' and (tmp_path/'out.checkpoints').is_dir()

def test_names_that_differ_in_case_only_are_refused(start):
    with pytest.raises(ValueError, match="differ in case only: 'warm', 'Warm'"): start(names=['warm','cold','Warm'])

def test_the_order_stays_with_nine_classes_and_none(start):
    names = [*(f'class {o}' for o in 'abcdefghi'), none]
    s = start(names=names, batch=20)
    for i in range(60):
        o = s.next(); assert o['labels']==names
        s.label(o['index'], names[i%10])

def test_what_was_set_aside_stays_aside_and_is_said(start):
    s = start(texts[:40])
    gone = {(o := s.next())['text']:s.skip(o['index']) for _ in range(20)}
    assert 'texts set aside: ' in str(s) and 'if they were the hard ones' in str(s)
    again = start(texts[:40])
    seen = []
    while o := again.next(): seen.append(o['text']); again.label(o['index'], 'cold')
    assert len(seen)==20 and not {*seen}&{*gone} and not s.rows() is None

def test_a_wrong_index_or_class_changes_nothing(start):
    s = start(); work(s, 2)
    before,o = start.path.read_bytes(),s.next()
    for index,label,match in ((o['index'], 'wram', 'did you mean warm'), (o['index'], '', "got ''"), (-1, 'warm', 'not on offer'), (10**9, 'warm', 'not on offer'), ('1', 'warm', 'not on offer')):
        with pytest.raises(ValueError, match=match): s.label(index, label)
    with pytest.raises(ValueError, match='not on offer'): s.skip(-1)
    for name,match in (('', 'blank'), (' \n', 'blank'), ('++', 'blank'), ('warm', 'already'), (none, 'already'), ('Warm', "a class 'warm' already")):
        with pytest.raises(ValueError, match=match): s.add_class(name)
    assert start.path.read_bytes()==before and s.next()==o

def test_a_new_class_stays(start):
    s = start()
    assert s.add_class('  not  sure ')=='not sure'
    s.label(s.next()['index'], 'not sure')
    assert start().labels==['warm','cold','not sure',none]
    s.add_class('no label yet')
    assert start().labels==['warm','cold','no label yet','not sure',none] and 'no label yet' in s.next()['labels']

def test_names_and_labels_are_the_same_with_other_blanks(start):
    work(start(by=' bo '), 1)
    df = rows(start.path); edit(start.path, df.assign(label=' warm '))
    s = start(by='bo')
    assert s.labels==['warm','cold',none] and s.table().label.tolist()==['warm'] and s.undo()==df.text[0]
    s = start(by=None); work(s, 1); assert s.undo()
    with pytest.raises(ValueError, match="'None of these', 'none of these'"): start(names=['None of these','warm'])

def test_earlier_labels_do_not_replace_those_of_the_file(start):
    work(start(), 3)
    df = start().table()
    new = start(labelled=pd.DataFrame(dict(text=[*df.text, 'another'], label='cold', by='model'))).table()
    assert new[['text','label']].values.tolist()==[*df[['text','label']].values.tolist(), ['another','cold']]

def test_columns_named_by_numbers_are_kept(start):
    pool = pd.DataFrame({'text':texts, 0:'x'})
    for _ in range(3): work(start(pool), 1)
    assert [*rows(start.path)][:2]==['text','0'] and rows(start.path)['0'].tolist()==['x']*3 and start().file.columns.count('0')==1
    with pytest.raises(ValueError, match="'a' is the name of 2 columns"): start(pd.DataFrame([['b','c','d']], columns=['text','a','a']))
    with pytest.raises(TypeError, match='the name of one column'): start(pool, text_col=['text',0])

def test_a_list_of_many_classes_is_counted_not_named(start):
    s = start(names=[f'class {i}' for i in range(150)])
    work(s, 3, lambda o: 'class 7')
    s._thread.join()
    assert 'classes with a label: 1 of 150; the others are known by their names alone' in s.lines() and 'few labels' not in str(s)
    assert 'score at accuracy .5' in s.lines() and 'few labels' in str(start())

# The file

def test_a_bare_quote_of_another_tool_costs_no_row(start):
    bare = 'text,label\n5" pipe,warm\n'+''.join(f'text {i},cold\n' for i in range(20))
    start.path.write_text(bare)
    s = start(); work(s, 1)
    assert len(rows(start.path))==22 and rows(start.path).text[0]=='5" pipe'
    start.path.write_text(bad := bare.replace('5" pipe', '"5 pipe'))
    with pytest.raises(ValueError, match='line 2: a quote is open'): start()
    assert start.path.read_text()==bad

def edit(path, df): df.to_csv(path, index=False); os.utime(path, ns=(time.time_ns(),)*2)

def test_what_others_change_meanwhile_is_kept(start):
    s = start(); work(s, 4)
    df = rows(start.path)
    edit(start.path, df.assign(checked='yes', label=['odd one',*df.label[1:]]).iloc[:3])
    work(s, 2)
    new = rows(start.path)
    assert len(new)==5 and new.label[0]=='odd one' and new.checked.tolist()==['yes']*3+['']*2
    assert 'odd one' in s.labels and '4 rows became 3' in str(s)
    edit(start.path, new[['label','text']])                                 # columns gone, and in another order
    work(s, 1)
    assert len(rows(start.path))==6 and {'label','text','audit','time'}<={*rows(start.path)}
    start.path.write_text('\ufeff'+rows(start.path).to_csv(index=False, sep=';').rstrip('\n'))     # as a spreadsheet saves it
    work(s, 1)
    assert len(rows(start.path))==7 and rows(start.path).label[0]=='odd one'
    edit(start.path, rows(start.path).assign(label=lambda o: [' warm ',*o.label[1:]]))
    assert s.table().label[0]=='warm' and ' warm ' not in s.labels
    index = s.next()['index']                                               # before the thread that learns reads the file
    start.path.write_bytes('text,label\nWo ist das Café?,cold\n'.encode('cp1252'))
    with pytest.raises(ValueError, match='UTF-8'): s.label(index, 'cold')

def test_columns_that_somebody_emptied_are_told(tmp_path):
    f = LabelFile(tmp_path/'labels.csv', ['text','label','audit','time'], ['text','label'])
    f.add(*(dict(text=o, label='warm', audit=True, time='1') for o in 'ab'))
    edit(f.path, rows(f.path)[['label','text']])
    assert len(f.read())==2 and f.says.endswith('2 rows became 2; blank now: audit, time')

def test_a_read_only_file_is_not_replaced(start, monkeypatch):
    work(start(), 1)
    monkeypatch.setattr(os, 'access', lambda *args: False)   # root may write anything
    with pytest.raises(PermissionError, match='labels.csv is read-only; choose another file'): start()

def test_a_file_of_something_else_is_refused(start, tmp_path):
    for content in ('text,intent\na,b\n', 'just a line', '{"text": 1}\n', ''):
        start.path.write_text(content)
        with pytest.raises(ValueError, match='no labels of a session' if content else 'is empty; delete it'): start()
        assert start.path.read_text()==content
    for name,error in (('labels.xlsx',ValueError), ('.csv',ValueError)):
        with pytest.raises(error): LabelSession(texts, ['a'], tmp_path/name)
    (tmp_path/'folder.csv').mkdir()
    with pytest.raises(IsADirectoryError): LabelSession(texts, ['a'], tmp_path/'folder.csv')
    with pytest.raises(OSError, match='cannot be written'): LabelSession(texts, ['a'], '/proc/fastformers/labels.csv')

labeller = """
import sys, time, pandas as pd
from fastformers.label.session import LabelSession
texts,out,arch,by = pd.read_csv(sys.argv[1]).text.tolist(),*sys.argv[2:]
s = LabelSession(texts, ['warm','cold'], out, by=by, arch=arch, batch=8)
print('another session' in str(s), flush=True)
while o := s.next():
    s.label(o['index'], 'cold')
    print(o['index'], flush=True)
"""
def process(start, tiny, tmp_path, by=''):
    pd.DataFrame(dict(text=texts)).to_csv(tmp_path/'texts.csv', index=False)
    return subprocess.Popen([sys.executable, '-W', 'ignore', '-c', labeller, tmp_path/'texts.csv', start.path, tiny, by], stdout=subprocess.PIPE, text=True)

def test_kill_9_loses_at_most_the_text_on_the_screen(start, tiny, tmp_path):
    for i in range(2):
        p,said = process(start, tiny, tmp_path),[]
        assert p.stdout.readline()=='False\n'
        for _ in range(12): said.append(int(p.stdout.readline()))
        p.send_signal(signal.SIGKILL); said += [*map(int, p.stdout.read().split())]; p.wait()
        df = rows(start.path)
        assert {texts[o] for o in said}<={*df.text} and df.text.is_unique
        if not i: first = len(df)
    assert first+12<=len(df)<=first+len(said)+1

def test_two_processes_write_to_one_file(start, tiny, tmp_path):
    s = start(by='anna')
    p = process(start, tiny, tmp_path, 'bo')
    assert p.stdout.readline()=='True\n'                     # it is told of the session here
    work(s, 30)
    while len(rows(start.path).query('by=="bo"'))<30: time.sleep(.05)
    p.kill(); p.wait()
    df = rows(start.path)
    assert (df.by=='anna').sum()==30 and 'changed by somebody' in str(s)
    assert not df[df.duplicated(['text','by'])].shape[0]
    start(by='carl')

# People

def test_people_are_compared_on_random_texts(start):
    work(start(by='anna'), 40)
    s = start(by='bo')
    work(s, 40, lambda o: 'cold')
    both = s.agreement()
    df = rows(start.path)
    common = df[df.by=='anna'].merge(df[df.by=='bo'], on='text')
    assert len(common)>=8 and both.texts.tolist()==[len(common)] and (common.audit_x=='True').all() and (common.audit_y=='True').all()
    assert both.same[0]==pytest.approx((common.label_x=='cold').mean()) and both.kappa[0]<.1
    assert f'anna and bo: the same label for {both.same[0]:.0%} of {len(common)} texts' in str(s)
    table = s.table().set_index('text').label
    assert table.index.is_unique and (table[common.text]=='cold').all() and 'texts with two labels' in str(s)

def test_kappa_of_a_small_table(start):
    "Nine texts of ten alike, one class in half of them: (.9 - .5)/(1 - .5)"
    LabelFile(start.path, ['text','label','audit','by'], []).add(*(dict(text=texts[i], label='warm' if i<5 or (i==5 and by=='a') else 'cold', audit=True, by=by) for by in 'ab' for i in range(10)))
    assert start().agreement().kappa.tolist()==[pytest.approx(.8)]

def test_labels_of_a_model_are_taken_over_with_their_source(start):
    old = pd.DataFrame(dict(text=texts[:6], label=['warm','cold']*3, by=['model']*5+[None]))
    s = start(labelled=old)
    df = rows(start.path)
    assert df.by.tolist()==['model']*5+['earlier'] and (df.audit=='False').all()
    assert len(start(labelled=old).rows())==6               # once
    more = pd.DataFrame(dict(text=texts[6:8], label=[1.,2.], audit=True)) # numbers, and drawn at random elsewhere
    df = start(names=['1','2','warm','cold'], labelled=more).table()[6:]
    assert df.label.tolist()==['1','2'] and not df.audit.any()
    work(s, 10)
    assert not {*rows(start.path).text[8:]}&{*old.text}
    with pytest.raises(ValueError, match='no label of yours'): start(by='x').undo()
    for bad,match in ((old.assign(label='wram'), 'wram; did you mean warm'), (old.drop(columns='label'), 'label')):
        with pytest.raises(ValueError, match=match): start(labelled=bad)

# The model

def test_nobody_waits_for_the_model(start, monkeypatch):
    go,slow = Event(),[]
    def choose(*args, **kw): slow.append(go.wait(600)); return draw(*args, **kw)
    monkeypatch.setattr(module, 'choose_texts', choose)
    s = start(batch=12)
    assert s.next(wait=False) is None and s.busy
    go.set(); work(s, 8); go.clear()
    work(s, 3); assert s.busy and len(slow)==1              # while the thread chooses
    go.set(); work(s, 20); assert len(slow)>=3

def test_a_process_ends_while_the_model_learns(tiny, tmp_path):
    code = "import sys, time; from fastformers.label.session import LabelSession; s = LabelSession([f'text {i} '+'word '*90 for i in range(9000)], ['a','b'], sys.argv[1], arch=sys.argv[2]); time.sleep(2); assert s.busy"
    p = subprocess.run([sys.executable, '-W', 'ignore', '-c', code, tmp_path/'labels.csv', tiny], env={**os.environ, 'FASTFORMERS_HOME':str(tmp_path)}, capture_output=True, text=True, timeout=100)
    assert p.returncode==0 and 'terminate called' not in p.stderr and 'Traceback' not in p.stderr

def test_an_error_of_the_thread_is_shown(start, monkeypatch):
    s = start(); s.next()
    def fail(*args, **kw): raise RuntimeError('no memory')
    with monkeypatch.context() as m:
        m.setattr(module, 'choose_texts', fail)
        with pytest.raises(RuntimeError, match='no memory'): work(s, 20)
        assert 'could not be chosen: no memory' in str(s) and len(s.rows())==8
    work(s, 3)
    assert 'no memory' not in str(s)

# Odd texts

odd = {'markup':'<script>alert(1)</script>', 'emoji':'👍🏽 ok \U0001F468\u200d\U0001F469', 'right to left':'שלום \u202e עולם', 'control':'a\x00b\x07\x1b[31m', 'lines':'one\r\ntwo\rthree\n', 'quotes':'"a", ""b"" and \'c\'',
       'separator':'a\u2028b\x85c', 'surrogate':'a \ud800 b', 'formula':'=1+1', 'null':'NA', 'long':'word '*5000}
def test_odd_texts_come_back_as_they_were(start):
    s = start([*odd.values(), *texts[:5]], names=['schlüssel','=b", \n\'c'])
    while o := s.next(): s.label(o['index'], s.labels[o['index']%3], note='"x",\n')
    assert len(s.rows())==len(odd)+5 and start([*odd.values(), *texts[:5]]).next() is None
    got = pd.read_csv(start.path, keep_default_na=False)
    assert {*got.text}=={*s.pool.text} and got.text.str.contains('[31m', regex=False).any()

@pytest.mark.parametrize('pool,names,n', [(texts[:10], ['a','b'], 10), (['same']*50, ['a','b'], 1), (texts[:30], ['a'], 30), (texts[:30], [f'class {i}' for i in range(500)], 30), (['', ' ', None, 'x', 'y'], ['a','b'], 2)],
                         ids=['ten texts','equal texts','one class','500 classes','blank texts'])
def test_small_and_odd_pools_end(start, pool, names, n):
    s,k = start(pool, names),0
    while o := s.next(): s.label(o['index'], o['labels'][k%2]); k += 1
    assert k==n and s.next() is None and str(s)

@pytest.mark.parametrize('kw,match', [(dict(texts=[]), 'no rows'), (dict(names=[]), 'class'), (dict(names=['a','a']), 'twice'), (dict(names='a,b'), 'list'), (dict(texts='one'), 'list of texts'), (dict(text_col='note', texts=pd.DataFrame(dict(note=texts))), 'column of the session'), (dict(text_col='txet', texts=pd.DataFrame(dict(text=texts))), 'did you mean text')])
def test_mistakes_are_named_at_the_door(start, kw, match):
    with pytest.raises((ValueError,TypeError), match=match): start(**kw)
    assert not start.path.exists()

def test_context_that_cannot_be_shown_is_named(start, caplog):
    df = pd.DataFrame(dict(text=texts, who='me'))
    start(df); assert not caplog.records
    start(df.assign(by='x', note='y', time='z', audit=1))
    assert 'not shown beside the texts are by, note, time, audit' in caplog.text and 'rename them' in caplog.text

def test_context_is_shown_and_kept(start):
    df = pd.DataFrame(dict(text=texts, who=[f'user {i}' for i in range(len(texts))], label='x', is_valid=True))
    s = start(df); o = s.next()
    assert o['context']=={'who':f"user {o['index']}"}
    s.label(o['index'], 'warm')
    assert rows(start.path).who[0]==f"user {o['index']}" and 'is_valid' not in rows(start.path)

# Training

def test_one_row_a_text_is_trained_on_and_a_class_may_have_none(start, monkeypatch):
    work(start(by='anna'), 40)
    s = start(by='bo', names=['warm','cold','new one']); work(s, 10, lambda o: 'cold')
    got = []
    monkeypatch.setattr(module, 'Command', lambda args: got.append([str(o) for o in args]))
    s.train()
    args = dict(zip(got[0], got[0][1:]))
    assert args['classify']==str(start.path) and '--drop-blank' in args and args['--output']==str(start.path.with_suffix('')) 
    def names(): return start.path.with_suffix('.names.txt').read_text().splitlines()
    assert args['--labels']==str(start.path.with_suffix('.names.txt')) and names()==['warm','cold','new one',none]
    assert [*rows(args['--unlabelled']).text]==[o for o in s.pool.text if o not in {r['text'] for r in s.rows()}] # duplicates once
    with pytest.raises(ValueError, match='two classes'): LabelSession(texts, ['a'], start.path.with_name('new.csv')).train()
    s = start(names=['warm','cold','a, b'])
    s.train(); assert 'a, b' in names()

def test_a_text_with_labels_of_two_people_is_one_row_of_the_table_its_latest(start, tiny):
    work(start(by='anna'), 40)
    work(s := start(by='bo'), 10, lambda o: 'cold')
    df,want = pd.read_csv(start.path, keep_default_na=False),s.table()
    assert len(want)<len(df)
    read = Rows(df)
    assert dict(zip(read.texts, read.labels))==dict(zip(want.text, want.label)) and len(read)==len(want)
    dls = classifier_dls(df, tiny_tok())
    assert len(dls.train_ds)+len(dls.valid_ds)==len(want) and len(dls.valid_ds)==want.audit.sum()
    assert standing(df, tiny).n==len(want)
    assert len(Rows(df.drop(columns='by')))==len(df) # another table is left as it is

def test_a_training_that_fails_says_why(tmp_path):
    t = Command(['classify', str(tmp_path/'none.csv'), '--output', str(tmp_path/'out')])
    t.process.wait()
    assert 'does not exist' in t.verdict

def test_vectors_of_many_small_batches_need_few_open_files(tiny, tmp_path, monkeypatch):
    "A system may allow 256"
    monkeypatch.setenv('FASTFORMERS_HOME', str(tmp_path))
    limit,most = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = TextVectors(tiny)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/dev/fd'))+20, most))
    try:
        one_by_one = np.concatenate([kept([f'text {i}']) for i in range(40)])
        assert np.array_equal(TextVectors(tiny)([f'text {i}' for i in [3,*range(40),3]]), one_by_one[[3,*range(40),3]])
    finally: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
