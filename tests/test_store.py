"A token store: the same bytes whatever happens on the way, batches equal to those of a list, nothing damaged read in silence"
import gzip, errno, json, os, random, shutil, signal, subprocess, sys, time
from pathlib import Path
import numpy as np, pandas as pd, pytest, torch
import fastformers.text.ragged as ragged, fastformers.text.streams as streams
from fastformers.text.core import TensorTokens
from fastformers.data.block import lm_dls
from fastformers.learner.core import lm_learner
from fastformers.text.ragged import RaggedWriter
from fastformers.data.packing import PackedRows
from fastformers.text.store import TokenStore
from fastformers.text.streams import chunks, open_texts, pieces
from fastformers.testing import tiny_arch, tiny_df, tiny_styles, tiny_tok
from fastformers.text.tokenizer import HFTokenizer, encode_df

names = 'values.bin','ends.bin','manifest.jsonl'
def data(store): return {o:(Path(getattr(store, 'path', store))/o).read_bytes() for o in names}
def texts_like(n, seed=0, longest=60):
    "`n` texts of words of the tiny reviews"
    words,rng = ' '.join(tiny_df().text).split(),random.Random(seed)
    return [' '.join(rng.choices(words, k=rng.randrange(1, longest))) for _ in range(n)]

@pytest.fixture
def small_chunks(monkeypatch): # so that a few texts make many chunks
    monkeypatch.setattr(streams, '_chunk', 2000); monkeypatch.setattr(streams, '_longest', 500); monkeypatch.setattr(streams, '_block', 700)

# ---- what is in it

@pytest.mark.parametrize('style', tiny_styles)
def test_documents_are_what_the_tokenizer_gives(style, tmp_path):
    texts = [*tiny_df().text, '', ' ', 'one', '[SEP] <pad> [MASK] </s> <|endoftext|> are words', 'caf\u00e9 \U0001F600', 'lone \ud800 surrogate']
    tok = HFTokenizer(tiny_tok(style))
    store = TokenStore.build(texts, tok, tmp_path/'s')
    assert len(store)==len(texts)
    from fastformers.data.packing import _affixes
    pre,post = map(len, _affixes(tok)[:2])
    for o,t in zip(store, texts):
        want = tok(t)
        assert o.ids.tolist()==want.ids.tolist()[pre:len(want)-post], t
        assert type(o) is TensorTokens

@pytest.mark.parametrize('packing', ['doc-sentences','full-sentences'])
@pytest.mark.parametrize('style', ['bert','roberta','gpt2','xlnet','t5'])
def test_batches_equal_those_of_a_list(style, packing, tmp_path):
    texts = ['', *texts_like(150), 'one']
    store = TokenStore.build(texts, tok := tiny_tok(style), tmp_path/'s')
    for kw in (dict(bs=8), dict(bs=8, max_tokens=100, seed=7), dict(bs=5, valid_pct=.4, seq_len=9)):
        a,b = (lm_dls(o, tok, packing=packing, device='cpu', **kw) for o in (store, texts))
        assert (len(a.train_ds),len(a.valid_ds))==(len(b.train_ds),len(b.valid_ds))
        for dl in ('train','valid','train'): # the second pass is shuffled anew
            for x,y in zip(getattr(a, dl), getattr(b, dl), strict=True):
                assert type(x[0]) is TensorTokens
                assert all(torch.equal(p.as_subclass(torch.Tensor), q.as_subclass(torch.Tensor)) for p,q in zip(x, y, strict=True))

def test_a_learner_trains_on_it_and_workers_read_it(tmp_path):
    dls = lm_dls(TokenStore.build(texts_like(40), tok := tiny_tok('bert'), tmp_path/'s'), tok, bs=8, device='cpu')
    learn = lm_learner(dls, tiny_arch('bert'), pretrained=False)
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
    assert np.isfinite(learn.recorder.values[-1]).all()
    for a,b in zip(dls.valid, dls.valid.new(num_workers=2), strict=True): assert torch.equal(a[0], b[0])
    assert dls.test_dl(['a new text']).one_batch()[0].shape[0]==1

def test_rows_are_made_when_asked_for(tmp_path, monkeypatch):
    store = TokenStore.build(texts_like(200), tok := tiny_tok('bert'), tmp_path/'s')
    made = []
    was = PackedRows.__getitem__
    monkeypatch.setattr(PackedRows, '__getitem__', lambda self, i: made.append(i) or was(self, i))
    dls = lm_dls(store, tok, bs=4, device='cpu')
    dls.train.one_batch()
    assert len(made)<12

# ---- the same bytes

def test_doors_and_workers_give_the_same_bytes(small_chunks, tmp_path):
    texts = texts_like(300)
    tok,want = tiny_tok('bert'),None
    df = pd.DataFrame(dict(text=texts, n=range(300)))
    df.to_csv(tmp_path/'a.csv', index=False); df.to_csv(tmp_path/'a.tsv.gz', sep='\t', index=False)
    df.to_json(tmp_path/'a.jsonl.gz', orient='records', lines=True)
    (tmp_path/'a.txt').write_text('\n\n'.join(texts)); (tmp_path/'b.txt.gz').write_bytes(gzip.compress('\r\n'.join(texts).encode('utf-16')))
    (tmp_path/'c.txt').write_text('\n\n'.join(f'= {i} =\n{t}' for i,t in enumerate(texts)))
    (tmp_path/'dir').mkdir()
    for i,t in enumerate(texts): (tmp_path/f'dir/{i:03}.txt').write_text(t)
    class Rows: # what a `datasets.Dataset` looks like from outside
        column_names = ['text','n']
        def __iter__(self): return iter(df.to_dict('records'))
    class Big(Rows):
        def __len__(self): return 300
        def select_columns(self, cols): assert cols==['text']; return self
    doors = dict(list=texts, gen=(o for o in texts), frame=df, series=df.text, stream=Rows(), dataset=Big(), csv=tmp_path/'a.csv', tsv=str(tmp_path/'a.tsv.gz'), jsonl=tmp_path/'a.jsonl.gz',
                 lines=tmp_path/'a.txt', articles=tmp_path/'c.txt', folder=tmp_path/'dir')
    for name,source in doors.items():
        got = data(TokenStore.build(source, tok, tmp_path/f's_{name}', n_workers=2 if name=='csv' else 0))
        assert got==(want := want or got), name
    assert data(TokenStore.build(tmp_path/'b.txt.gz', tok, tmp_path/'s_16', encoding='utf-16'))==want
    assert data(TokenStore.build(texts, tok, tmp_path/'s_3', n_workers=3))==want
    assert len(json.loads('['+want['manifest.jsonl'].decode().strip().replace('\n',',')+']'))>6

script = """import sys, time, fastformers.text.ragged as r, fastformers.text.streams as s
from fastformers.text.store import TokenStore
from fastformers.testing import tiny_tok
s._chunk = 2000
where = int(sys.argv[4]) # slow down, and say where we are
def slow(name):
    was = getattr(r, name)
    def f(*args):
        print(name, flush=True)
        time.sleep(.01)
        return was(*args)
    setattr(r, name, f)
slow('_put')
if where<0:
    import os
    was = os.fsync
    r.os.fsync = lambda f: (print('fsync', flush=True), time.sleep(5))
TokenStore.build(sys.argv[1], tiny_tok('bert'), sys.argv[2], n_workers=int(sys.argv[3]), progress=False)
print('done', flush=True)
"""

@pytest.mark.parametrize('stop,n_workers', [(1,0), (8,0), (9,2), (25,0), (40,2), (-1,0)])
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(stop, n_workers, tmp_path, small_chunks, caplog):
    (tmp_path/'a.txt').write_text('\n'.join(texts_like(400)))
    tok = tiny_tok('bert')
    want = data(TokenStore.build(tmp_path/'a.txt', tok, tmp_path/'whole'))
    (tmp_path/'b.py').write_text(script)
    p = subprocess.Popen([sys.executable, tmp_path/'b.py', tmp_path/'a.txt', tmp_path/'s', str(n_workers), str(stop)], stdout=subprocess.PIPE, text=True, env={**os.environ, 'PYTHONPATH':os.pathsep.join(sys.path)})
    n = 0
    for line in p.stdout:
        n += line.startswith('_put')
        if line=='fsync\n' or n==stop: break
    p.send_signal(signal.SIGKILL); p.wait(); p.stdout.close()
    assert not (tmp_path/'s').exists() and (tmp_path/'s.building').exists()
    with pytest.raises(FileNotFoundError, match='interrupted: run the same again'): TokenStore(tmp_path/'s')
    caplog.set_level('INFO')
    # the killed one used larger pieces of a file, which change nothing
    assert data(TokenStore.build(tmp_path/'a.txt', tok, tmp_path/'s', n_workers=n_workers))==want
    assert not (tmp_path/'s.building').exists()
    if stop>4 or stop<0: assert 'were there already' in caplog.text

@pytest.mark.parametrize('harm', ['torn line','torn values','more values','flipped','other source','other tokenizer'])
def test_what_an_interrupted_build_left_is_checked(harm, tmp_path, small_chunks):
    texts,tok = texts_like(300),tiny_tok('bert')
    want = data(TokenStore.build(texts, tok, tmp_path/'whole'))
    def stops():
        yield from texts[:250]
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): TokenStore.build(stops(), tiny_tok('roberta') if harm=='other tokenizer' else tok, tmp_path/'s')
    d = tmp_path/'s.building'
    v,log = (d/'values.bin').read_bytes(),(d/'manifest.jsonl').read_bytes()
    assert log.count(b'\n')>3
    if harm=='torn line': (d/'manifest.jsonl').write_bytes(log[:-7])
    if harm=='torn values': (d/'values.bin').write_bytes(v[:-5])
    if harm=='more values': (d/'values.bin').write_bytes(v+b'12345')
    if harm=='flipped': (d/'values.bin').write_bytes(v[:900]+bytes([v[900]^4])+v[901:])
    if harm=='other source': texts[40] += '!'; want = data(TokenStore.build(texts, tok, tmp_path/'other'))
    assert data(TokenStore.build(texts, tok, tmp_path/'s'))==want

def test_a_source_that_became_shorter_leaves_nothing_behind(tmp_path, small_chunks):
    texts,tok = texts_like(300),tiny_tok('bert')
    with pytest.raises(TypeError, match='got None at position 280'): TokenStore.build([*texts[:280], None], tok, tmp_path/'s')
    assert data(TokenStore.build(texts[:100], tok, tmp_path/'s'))==data(TokenStore.build(texts[:100], tok, tmp_path/'t'))

def test_two_builders_at_once(tmp_path):
    tok = tiny_tok('bert')
    def texts():
        yield 'a film'
        with pytest.raises(RuntimeError, match='written by another process'): TokenStore.build(['x'], tok, tmp_path/'s')
    assert len(TokenStore.build(texts(), tok, tmp_path/'s'))==1

def test_a_dead_worker_is_an_error_and_nothing_is_lost(tmp_path, small_chunks):
    texts,tok = texts_like(300),tiny_tok('bert')
    def kills():
        for i,o in enumerate(texts):
            if i==200: os.kill(int(Path(f'/proc/self/task/{os.getpid()}/children').read_text().split()[-1]), signal.SIGKILL)
            yield o
    if not Path(f'/proc/self/task/{os.getpid()}/children').exists(): pytest.skip('no list of children here')
    with pytest.raises(RuntimeError, match='exit code -9.*run the same again'): TokenStore.build(kills(), tok, tmp_path/'s', n_workers=1)
    assert data(TokenStore.build(texts, tok, tmp_path/'s'))==data(TokenStore.build(texts, tok, tmp_path/'t'))

# ---- bad stores

@pytest.fixture
def store(tmp_path, small_chunks): return TokenStore.build(texts_like(200), tiny_tok('bert'), tmp_path/'s')

@pytest.mark.parametrize('name', names)
def test_a_store_cut_short_is_refused(store, name):
    f = store.path/name
    f.write_bytes(f.read_bytes()[:-9])
    with pytest.raises(ValueError, match=f'{name} is damaged'): TokenStore(store.path)
    f.unlink()
    with pytest.raises(ValueError, match=f'not complete.*{name} missing'): TokenStore(store.path)

@pytest.mark.parametrize('name', names)
def test_every_flipped_byte_is_found(store, name):
    f = store.path/name
    whole = f.read_bytes()
    for at in random.Random(3).sample(range(len(whole)), 40):
        f.write_bytes(whole[:at]+bytes([whole[at]^(1<<at%8)])+whole[at+1:])
        with pytest.raises(ValueError, match='damaged|format'): TokenStore(store.path).verify()
        with pytest.raises(ValueError, match='damaged|format'): [*TokenStore(store.path)]
    f.write_bytes(whole)
    TokenStore(store.path).verify()

def test_damage_is_found_where_it_is_read(store):
    f = store.path/'values.bin'
    whole = f.read_bytes()
    f.write_bytes(whole[:-1]+bytes([whole[-1]^1]))
    s = TokenStore(store.path)
    assert torch.equal(s[0], store[0])
    with pytest.raises(ValueError, match=r'values\.bin is damaged \(chunk \d+ of \d+'): s[-1]
    with pytest.raises(ValueError, match='is damaged'): [*lm_dls(s, tiny_tok('bert'), device='cpu').train]

def test_what_is_no_store(store, tmp_path):
    (d := tmp_path/'mine').mkdir(); (d/'letter.txt').write_text('dear')
    with pytest.raises(ValueError, match='not written by this library.*holds letter.txt'): TokenStore(d)
    with pytest.raises(FileNotFoundError, match='is no directory'): TokenStore(tmp_path/'nowhere')
    with pytest.raises(FileNotFoundError, match='is no directory'): TokenStore(d/'letter.txt')
    for kw in ({}, dict(overwrite=True)):
        with pytest.raises(FileExistsError, match='was not written by this library'): TokenStore.build(['a'], tiny_tok('bert'), d, **kw)
    assert (d/'letter.txt').read_text()=='dear'
    with RaggedWriter(tmp_path/'r', 'u2') as w: w.add([1,2], [2]); w.finish()
    with pytest.raises(ValueError, match='not of a tokenizer'): TokenStore(tmp_path/'r')
    new = (store.path/'manifest.jsonl').read_text().replace('"format":1', '"format":2')
    (store.path/'manifest.jsonl').write_text(new)
    with pytest.raises(ValueError, match='has format 2, this version reads 1'): TokenStore(store.path)

def test_another_tokenizer_is_refused(store):
    for f in (lambda: TokenStore(store.path, tiny_tok('roberta')), lambda: lm_dls(store, tiny_tok('roberta'))):
        with pytest.raises(ValueError, match='was made by another tokenizer'): f()
    TokenStore(store.path, HFTokenizer(tiny_tok('bert'), 32))

def test_overwrite_replaces_at_the_end_only(store):
    old = data(store)
    def fails():
        yield 'new'
        assert data(store.path)==old
        raise OSError('gone')
    with pytest.raises(OSError, match='gone'): TokenStore.build(fails(), tiny_tok('bert'), store.path, overwrite=True)
    assert data(store.path)==old
    assert len(TokenStore.build(['new'], tiny_tok('bert'), store.path, overwrite=True))==1
    assert len(store)==200 and store[0].shape[0]              # who has it open reads on

# ---- a full disk

def test_a_full_disk_says_so_and_keeps_what_is_done(tmp_path, small_chunks, monkeypatch):
    texts,tok = texts_like(300),tiny_tok('bert')
    left = [3000]
    was = ragged._put
    def put(f, o):
        o = memoryview(o).cast('B')
        if len(o)>left[0]: was(f, o[:left[0]]); left[0] = 0; raise OSError(errno.ENOSPC, 'No space left on device')
        left[0] -= len(o)
        was(f, o)
    monkeypatch.setattr(ragged, '_put', put)
    with pytest.raises(OSError, match='the disk is full after [1-9].*rows; they are kept in .*s.building: make room and run the same again'): TokenStore.build(texts, tok, tmp_path/'s')
    monkeypatch.undo()
    monkeypatch.setattr(streams, '_chunk', 2000); monkeypatch.setattr(streams, '_longest', 500)
    assert data(TokenStore.build(texts, tok, tmp_path/'s'))==data(TokenStore.build(texts, tok, tmp_path/'t'))

def test_a_real_full_disk(tmp_path):
    (d := tmp_path/'tiny').mkdir()
    if subprocess.run(['mount','-t','tmpfs','-o','size=64k','tmpfs',d], capture_output=True).returncode: pytest.skip('mounting is not permitted')
    try:
        with pytest.raises(OSError, match='the disk is full'): TokenStore.build(texts_like(6000), tiny_tok('bert'), d/'s')
        assert not (d/'s').exists()
        for o in (d/'s.building').iterdir(): assert o.stat().st_size<=65536
        encode_df(df := pd.DataFrame(dict(text=texts_like(3000))), tiny_tok('bert'), cache=d/'cache')  # only the cache is lost
        assert len(encode_df(df, tiny_tok('bert'), cache=d/'cache'))==3000
    finally: subprocess.run(['umount', d])

# ---- odd documents

def test_a_large_vocabulary_takes_four_bytes(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    def tok(n):
        t = Tokenizer(models.WordLevel({'[UNK]':0, **{f'w{i}':i for i in range(1, n)}}, unk_token='[UNK]'))
        t.pre_tokenizer = pre_tokenizers.Whitespace()
        return PreTrainedTokenizerFast(tokenizer_object=t, unk_token='[UNK]')
    for n,dtype in ((65_535,'uint16'), (65_536,'uint32'), (70_000,'uint32')):
        s = TokenStore.build([f'w1 w{n-1} w2'], tok(n), tmp_path/str(n))
        assert (s.dtype,s[0].ids.tolist())==(dtype,[1,n-1,2])
        assert TokenStore.build([f'w1 w{n-1} w2'], tok(n), tmp_path/f'{n}w', n_workers=1)[0].ids.tolist()==[1,n-1,2]

@pytest.mark.parametrize('style', tiny_styles)
def test_a_huge_line_is_cut_where_no_token_is(style, tmp_path, monkeypatch):
    monkeypatch.setattr(streams, '_longest', 3000); monkeypatch.setattr(streams, '_block', 1000); monkeypatch.setattr(streams, '_chunk', 7000)
    line = ' '.join(texts_like(300))
    (tmp_path/'a.txt').write_text(f'before\n{line}\nafter')
    s = TokenStore.build(tmp_path/'a.txt', tok := HFTokenizer(tiny_tok(style)), tmp_path/'s')
    t = TokenStore.build([line], tok, tmp_path/'t')
    monkeypatch.undo()
    whole = TokenStore.build([line], tok, tmp_path/'w')[0]
    assert len(s)==3 and torch.equal(s[1], t[0]) and torch.equal(s[1], whole)

def test_empty_documents_and_documents_of_one_token(tmp_path):
    tok = tiny_tok('bert')
    s = TokenStore.build(['', 'the', '', '', 'the'], tok, tmp_path/'s')
    assert [len(o) for o in s]==[0,1,0,0,1]
    assert len(TokenStore.build([''], tok, tmp_path/'e')[0])==0
    with pytest.raises(ValueError, match='documents hold no token at all; check .*e'): lm_dls(TokenStore.build(['','',''], tok, tmp_path/'e3'), tok)
    with pytest.raises(ValueError, match='the source holds no text'): TokenStore.build(iter(()), tok, tmp_path/'none')
    assert len(TokenStore.build(['a'], tok, tmp_path/'none'))==1             # what the failed one left is no obstacle
    with pytest.raises(ValueError, match='cannot hold'): lm_dls(TokenStore(tmp_path/'none'), tok)

@pytest.mark.parametrize('name,content,msg', [('a.csv','t,u\n1,2\n',"'text' is not a column; columns are t, u"), ('a.csv','text,u\n1\n','line 2: expected 2 fields'),
    ('a.jsonl','{"text":"a"}\n{"t":1}\n',"line 2: `text_col` 'text' is not a key; keys are t"), ('a.jsonl','{"text":"a"}\nx\n','line 2: expected a JSON object'),
    ('a.jsonl','{"text":3}\n','expected a text, got 3'), ('a.txt','= A =\n\n= B =\nx\n','line 1: no text after'), ('a.txt','= A =\nx\n\ny\n','line 4: expected `= Title =`')])
def test_bad_files_name_the_line(name, content, msg, tmp_path):
    (tmp_path/name).write_text(content)
    with pytest.raises((ValueError,TypeError), match=msg): TokenStore.build(tmp_path/name, tiny_tok('bert'), tmp_path/'s')

def test_a_damaged_gzip_file_names_itself(tmp_path):
    (tmp_path/'a.txt.gz').write_bytes(gzip.compress(b'a text\n'*1000)[:-20])
    with pytest.raises(ValueError, match=r'a\.txt\.gz: damaged gzip'): TokenStore.build(tmp_path/'a.txt.gz', tiny_tok('bert'), tmp_path/'s')

# ---- the cache of encode_df

def test_two_processes_may_cache_at_once(tmp_path):
    (tmp_path/'c.py').write_text(f"""import sys; from fastformers.text.tokenizer import encode_df; from fastformers.testing import tiny_df, tiny_tok; import pandas as pd
df = pd.concat([tiny_df()]*20)
for i in range(4): print(sum(map(len, encode_df(df.assign(text=df.text+str(i)), tiny_tok('bert'), cache={str(tmp_path/'cache')!r}).ids)))""")
    ps = [subprocess.Popen([sys.executable, tmp_path/'c.py'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, 'PYTHONPATH':os.pathsep.join(sys.path)}) for _ in range(3)]
    outs = [p.communicate() for p in ps]
    assert len({o for o,_ in outs})==1 and all(p.returncode==0 for p in ps), outs
    assert len([o for o in (tmp_path/'cache').iterdir() if o.suffix!='.building'])==4

def test_cache_lies_in_the_home_and_is_not_used_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv('FASTFORMERS_HOME', str(tmp_path))
    df,tok = tiny_df(),tiny_tok('bert')
    encode_df(df, tok)
    assert not list(tmp_path.iterdir())
    a = encode_df(df, tok, cache=True)
    assert len(list((tmp_path/'ids').iterdir()))==1
    monkeypatch.setattr(HFTokenizer, 'encode_batch', lambda *args: 1/0)
    for x,y in zip(a.ids, encode_df(df, tok, cache=True).ids): assert torch.equal(x, y)
    moved = [df.text[0]+df.text[1][:1], df.text[1][1:], *df.text[2:]]             # the same characters, other bounds
    with pytest.raises(ZeroDivisionError): encode_df(df.assign(text=moved), tok, cache=True)
