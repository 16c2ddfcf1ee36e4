"What may go wrong around a token store, a checkpoint or a stage of a language model: it is said in words, at once, and nothing is lost"
import errno, json, os, pickle, random, shutil, signal, subprocess, sys, threading, time, tracemalloc
from contextlib import suppress
from pathlib import Path
import numpy as np, pandas as pd, pytest, torch
from safetensors import SafetensorError
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
import fastformers.text.encoding as encoding, fastformers.learner.core as learner_module, fastformers.text.ragged as ragged, fastformers.text.streams as streams
from fastformers.data.block import lm_dls
from fastformers.learner.core import lm_learner
from fastformers.text.ragged import Ragged, RaggedWriter
from fastformers.text.store import TokenStore
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from test_resume import Stop, benchmarks, fit, learner, same
from test_store import data, names, small_chunks, texts_like

env = {**os.environ, 'PYTHONPATH':os.pathsep.join(sys.path)}

@pytest.fixture
def soon():
    "What hangs is a failure, after two minutes"
    def fail(*args): raise TimeoutError('it hangs')
    was = signal.signal(signal.SIGALRM, fail)
    signal.alarm(120)
    yield
    signal.alarm(0); signal.signal(signal.SIGALRM, was)

@pytest.fixture
def disk(tmp_path):
    "A function that makes a disk of a size"
    d = tmp_path/'disk'; d.mkdir()
    if subprocess.run(['mount','-t','tmpfs','-o','size=4k','tmpfs',d], capture_output=True).returncode: pytest.skip('mounting is not permitted')
    def resize(size): subprocess.run(['mount','-o',f'remount,size={size}',d], check=True); return d
    yield resize
    subprocess.run(['umount', d])

# ---- a store that is not what was written

@pytest.mark.parametrize('name', names)
def test_a_file_of_any_other_length_is_refused_at_once(name, small_chunks, tmp_path):
    f = TokenStore.build(texts_like(200), tiny_tok('bert'), tmp_path/'s').path/name
    whole = f.read_bytes()
    for n in (0, 1, 2, 7, 8, 100, len(whole)//2, len(whole)-8, len(whole)-2, len(whole)-1):
        f.write_bytes(whole[:n])
        if name=='manifest.jsonl' and n==len(whole)-1: TokenStore(tmp_path/'s').verify(); continue # but for its last line end it is all there
        with pytest.raises(ValueError, match=f'{name} is damaged.*build it anew'): TokenStore(tmp_path/'s')
    for more in (whole[-8:], whole):
        f.write_bytes(whole+more)
        with pytest.raises(ValueError, match=f'{name} is damaged'): TokenStore(tmp_path/'s')

# ---- places

def test_a_store_lies_where_its_path_says(tmp_path, monkeypatch):
    tok = tiny_tok('bert')
    monkeypatch.setenv('HOME', str(tmp_path)); monkeypatch.setenv('USERPROFILE', str(tmp_path)); monkeypatch.chdir(tmp_path)
    s = TokenStore.build(['a film'], tok, '~/s')
    assert s.path==(tmp_path/'s').resolve() and sorted(os.listdir())==['s']
    t = TokenStore.build(['a film'], tok, 'sub/t')
    (tmp_path/'else').mkdir(); monkeypatch.chdir(tmp_path/'else')
    assert torch.equal(pickle.loads(pickle.dumps(t))[0], s[0]) # as a worker that stands elsewhere opens it

def test_a_link_is_followed_and_stays(tmp_path):
    tok,big = tiny_tok('bert'),tmp_path/'big'
    big.mkdir()
    TokenStore.build(['old'], tok, big/'s'); (tmp_path/'s').symlink_to(big/'s')
    TokenStore.build(['new', 'film'], tok, tmp_path/'s', overwrite=True)
    assert (tmp_path/'s').is_symlink() and len(TokenStore(tmp_path/'s'))==len(TokenStore(big/'s'))==2 and os.listdir(big)==['s']

@pytest.mark.parametrize('path,error,match', [('file',FileExistsError,'was not written by this library; choose another path'), ('file/s',NotADirectoryError,'cannot write to .*choose another path'),
    ('.',FileExistsError,'was not written by this library'), ('..',FileExistsError,'was not written by this library')])
def test_a_path_that_is_taken_is_refused(path, error, match, tmp_path, monkeypatch):
    (tmp_path/'d').mkdir(); monkeypatch.chdir(tmp_path/'d')
    Path('file').write_text('mine')
    with pytest.raises(error, match=match): TokenStore.build(['a film'], tiny_tok('bert'), path)
    assert os.listdir('.')==['file'] and Path('file').read_text()=='mine' and os.listdir('..')==['d']
    with pytest.raises(FileNotFoundError, match='file is no directory'): TokenStore('file')

def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    if ragged.fcntl is None: pytest.skip('no locks here at all')
    def no_locks(*args): raise OSError(errno.ENOLCK, 'No locks available')
    monkeypatch.setattr(ragged.fcntl, 'flock', no_locks)
    assert len(TokenStore.build(['a film'], tiny_tok('bert'), tmp_path/'s'))==1

def test_a_second_writer_empties_nothing_before_it_knows_of_the_first(tmp_path, monkeypatch):
    with RaggedWriter(tmp_path/'r', 'u2') as w:
        w.add([1,2,3], [2,3])
        monkeypatch.setattr(ragged.Path, 'exists', lambda self: False) # it looked just before the first one came
        with pytest.raises(RuntimeError, match='another process'): RaggedWriter(tmp_path/'r', 'u2')
        monkeypatch.undo()
        w.finish()
    assert [o.tolist() for o in Ragged(tmp_path/'r')]==[[1,2],[3]]

@pytest.mark.parametrize('stop', ['replace','rename','rmtree'])
def test_an_overwriting_writer_killed_at_any_of_its_last_steps(stop, tmp_path, monkeypatch):
    tok = tiny_tok('bert')
    def build(texts): return TokenStore.build(texts, tok, tmp_path/'s', overwrite=True)
    def killed(path, *args, **kwargs):
        if Path(path).exists(): raise KeyboardInterrupt
    build(['old'])
    monkeypatch.setattr(shutil if stop=='rmtree' else os, stop, killed)
    with pytest.raises(KeyboardInterrupt): build(['new','film'])
    monkeypatch.undo()
    assert len(TokenStore(tmp_path/('s.replaced' if stop=='rename' else 's')))==(2 if stop=='rmtree' else 1) # the old one is there, or the new one is
    if stop=='rmtree':
        with pytest.raises(FileExistsError, match='open it, or pass overwrite'): TokenStore.build(['new','film'], tok, tmp_path/'s')
    else: assert len(build(['new','film']))==2
    assert os.listdir(tmp_path)==['s']

# ---- a full disk

def test_a_disk_without_room_for_a_store(disk, tmp_path, small_chunks):
    texts,tok = texts_like(300),tiny_tok('bert')
    for size in ('4k','8k','20k'):
        with pytest.raises(OSError, match='disk is full|cannot write to .*No space left.*make room'): TokenStore.build(texts, tok, disk(size)/'s')
    assert data(TokenStore.build(texts, tok, disk('1m')/'s'))==data(TokenStore.build(texts, tok, tmp_path/'t'))

def test_a_disk_without_room_for_a_checkpoint_or_a_stage(disk, tmp_path):
    whole = fit(learner(tmp_path/'whole'))
    with pytest.raises(OSError, match='cannot write checkpoint .*No space left.*earlier checkpoints are as they were. Make room'): fit(learner(disk('900k')/'c'))
    assert sorted(os.listdir(disk('900k')/'c'))==['.lock','fit000-00000002']
    same(fit(learner(disk('9m')/'c')), whole)
    shutil.rmtree(disk('9m')/'c')
    whole.save_encoder(d := disk('9m')/'out')
    before = sorted(d.rglob('*'))
    used = sum(-(-o.stat().st_size//4096) for o in before)*4
    for size in (f'{used+20}k', f'{used+150}k'): # not even for the weights; for them alone
        with pytest.raises(OSError, match='the disk is full, .*out was not written and what was there is as it was; make room') as e: whole.save_encoder(disk(size)/'out')
        assert e.value.errno==errno.ENOSPC and sorted(d.rglob('*'))==before and os.listdir(d.parent)==['out']

def test_a_full_disk_while_a_stage_is_saved(tmp_path, monkeypatch):
    learn = learner(None, in_fit=True)
    learn.save_encoder(tmp_path/'out')
    was = (tmp_path/'out/model.safetensors').read_bytes()
    for e in (SafetensorError('Error while serializing: I/O error: No space left on device (os error 28)'), Exception('No space left on device (os error 28)'), OSError(errno.ENOSPC, 'No space left on device')):
        def full(*args): raise e
        monkeypatch.setattr(learner_module, 'write_checkpoint', full)
        with pytest.raises(OSError, match='the disk is full'): learn.save_encoder(tmp_path/'out')
        assert (tmp_path/'out/model.safetensors').read_bytes()==was and os.listdir(tmp_path)==['out']
    def other(*args): raise KeyError('x')
    monkeypatch.setattr(learner_module, 'write_checkpoint', other)
    with pytest.raises(KeyError): learn.save_encoder(tmp_path/'out')

# ---- checkpoints

def test_a_checkpoint_without_its_optimizer_is_damaged(tmp_path, caplog):
    whole = fit(learner(tmp_path/'whole'))
    fit(learner(tmp_path/'c', keep=3), Stop(9))
    *_,before,newest = sorted((tmp_path/'c').glob('fit*'))
    (newest/'optimizer.safetensors').unlink() # as a deletion that was killed leaves it
    caplog.set_level('INFO')
    same(fit(learner(tmp_path/'c', keep=3)), whole)
    assert f'{newest} is damaged: optimizer.safetensors is missing' in caplog.text and f'({before.name})' in caplog.text.replace(str(before), before.name)

def test_a_fit_that_is_over_needs_no_optimizer(tmp_path):
    whole = fit(learner(tmp_path))
    next(tmp_path.glob('*-end')).joinpath('optimizer.safetensors').unlink()
    same(fit(learner(tmp_path)), whole)

# ---- processes that die

def children():
    f = Path(f'/proc/self/task/{os.getpid()}/children')
    if not f.exists(): pytest.skip('no list of children here')
    return [int(o) for o in f.read_text().split()]

@pytest.mark.parametrize('n_dead,when', [(1,0), (1,150), (2,150), (1,299), (2,299)])
def test_two_workers_of_which_some_are_killed(n_dead, when, tmp_path, small_chunks, soon):
    texts,tok,old = texts_like(300),tiny_tok('bert'),set(children())
    def kills():
        for i,o in enumerate(texts):
            if i==when:
                for k in sorted(set(children())-old)[:n_dead]: os.kill(k, signal.SIGKILL)
            yield o
    late = (n_dead,when)==(1,299)                                                       # perhaps it had nothing left to do, and nobody misses it
    with suppress(RuntimeError) if late else pytest.raises(RuntimeError, match='exit code -9.*what was done is kept, run the same again'): TokenStore.build(kills(), tok, tmp_path/'s', n_workers=2)
    assert set(children())==old                                                         # the other one was ended too
    if not late or not (tmp_path/'s').exists(): TokenStore.build(texts, tok, tmp_path/'s', n_workers=2)
    assert data(tmp_path/'s')==data(TokenStore.build(texts, tok, tmp_path/'t'))

@pytest.mark.parametrize('seed', range(3))
def test_a_worker_killed_at_work(seed, tmp_path, monkeypatch, soon):
    monkeypatch.setattr(streams, '_chunk', 20_000)
    texts,tok,old,dead = texts_like(4000),tiny_tok('bert'),set(children()),[]
    def kill():
        time.sleep(random.Random(seed).uniform(.3, .8))
        dead.extend(sorted(set(children())-old)[:1])
        for o in dead: os.kill(o, signal.SIGKILL)
    def slow():
        for o in texts: time.sleep(.0005); yield o
    t = threading.Thread(target=kill); t.start()
    try: TokenStore.build(slow(), tok, tmp_path/'s', n_workers=2)
    except RuntimeError as e: assert 'ended unexpectedly' in str(e)
    else: assert not dead
    t.join()
    if not (tmp_path/'s').exists(): TokenStore.build(texts, tok, tmp_path/'s')
    assert data(tmp_path/'s')==data(TokenStore.build(texts, tok, tmp_path/'t'))

def test_a_worker_that_cannot_start_says_so(tmp_path, monkeypatch, soon):
    monkeypatch.setattr(encoding.sys, 'executable', shutil.which('false') or pytest.skip('no `false`'))
    with pytest.raises(RuntimeError, match='ended unexpectedly .exit code 1'): TokenStore.build(texts_like(9), tiny_tok('bert'), tmp_path/'s', n_workers=2)

def test_workers_end_in_silence_when_their_parent_is_killed(tmp_path, soon):
    (tmp_path/'b.py').write_text("""import sys, time, fastformers.text.streams as s
from fastformers.text.store import TokenStore
from fastformers.testing import tiny_df, tiny_tok
text = ' '.join(tiny_df().text)*300 # more than a chunk, so that the workers are busy
def texts():
    while True: print('on', flush=True); yield text
TokenStore.build(texts(), tiny_tok('bert'), sys.argv[1], n_workers=2, progress=False)""")
    for wait in (.05, .31):
        p = subprocess.Popen([sys.executable, '-W', 'ignore', tmp_path/'b.py', tmp_path/'s'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        for _ in range(8): p.stdout.readline()
        time.sleep(wait)
        p.kill()
        assert p.stderr.read()==b'' # at its end nobody holds the other end any more
        p.stdout.close(); p.stderr.close(); p.wait()

def test_workers_find_a_package_that_was_found_in_the_working_directory(tmp_path):
    root = Path(encoding.fastformers.__file__).parent.parent
    other = [o for o in sys.path if o and Path(o).resolve()!=root]
    code = "import sys\nfrom fastformers.text.store import TokenStore\nfrom fastformers.testing import tiny_tok\nprint(len(TokenStore.build(['a film'], tiny_tok('bert'), sys.argv[1], n_workers=1)))"
    r = subprocess.run([sys.executable, '-W', 'ignore', '-c', code, tmp_path/'s'], cwd=root, env={**os.environ, 'PYTHONPATH':os.pathsep.join(other)}, capture_output=True, text=True)
    assert r.stdout.strip().endswith('1'), r.stderr[-500:]

# ---- odd texts

def big_tok(n):
    "A tokenizer of words with `n` tokens, made as BERT's"
    special = '[PAD] [UNK] [CLS] [SEP] [MASK]'.split()
    t = Tokenizer(models.WordLevel({**{o:i for i,o in enumerate(special)}, **{f'w{i}':i for i in range(5, n)}}, unk_token='[UNK]'))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    t.post_processor = processors.TemplateProcessing(single='[CLS] $A [SEP]', pair='[CLS] $A [SEP] $B:1 [SEP]:1', special_tokens=[('[CLS]',2),('[SEP]',3)])
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token='[PAD]', unk_token='[UNK]', cls_token='[CLS]', sep_token='[SEP]', mask_token='[MASK]')

def test_a_vocabulary_of_four_bytes_trains(tmp_path):
    tok,rng = big_tok(70_000),random.Random(0)
    ids = [[rng.randrange(65_000, 70_000) for _ in range(rng.randrange(3, 20))] for _ in range(60)]
    texts = [' '.join(f'w{i}' for i in o) for o in ids]
    store = TokenStore.build(texts, tok, tmp_path/'s')
    assert store.dtype==np.uint32 and [o.tolist() for o in store]==ids and store.verify() is store
    a,b = (lm_dls(o, tok, seq_len=16, bs=8, device='cpu') for o in (store, texts))
    for x,y in zip(a.train, b.train, strict=True): assert all(torch.equal(p.as_subclass(torch.Tensor), q.as_subclass(torch.Tensor)) for p,q in zip(x, y, strict=True))
    learn = lm_learner(a, tiny_arch('bert', vocab_size=70_000, hidden_size=8, num_attention_heads=2, intermediate_size=8, num_hidden_layers=1), pretrained=False)
    old = learn.model.hf.get_input_embeddings().weight.detach().clone()
    with learn.no_bar(), learn.no_logging(): learn.fit(1, 1e-2)
    assert np.isfinite(learn.recorder.values[-1]).all() and (learn.model.hf.get_input_embeddings().weight[65_536:]!=old[65_536:]).any()

def test_a_huge_line_is_read_in_little_memory(tmp_path):
    def peak(mb):
        (f := tmp_path/'a.txt').write_text('before\n'+'a line that does not end, '*(mb*40_000)+'\nafter')
        tracemalloc.start()
        try: n = sum(sum(ends) for _,_,ends,_ in streams.chunks(streams.open_texts(f)[0])); return n,tracemalloc.get_traced_memory()[1]
        finally: tracemalloc.stop()
    (n,small),(m,large) = peak(3),peak(12)
    assert n==m==3 and large<1.5*small<3e7

@pytest.mark.parametrize('seed', range(30))
def test_white_space_around_a_long_line_goes_whatever_the_fragments(seed):
    rng = random.Random(seed)
    parts = [''.join(rng.choices(' \t\u3000ab', (9,3,1,seed%3,seed%2), k=rng.randrange(5))) for _ in range(rng.randrange(1, 12))]
    assert ''.join(streams._stripped(parts))==''.join(parts).strip()

def test_a_line_of_white_space_takes_no_time():
    start = time.time()
    assert sum(map(len, streams._stripped(['a', *[' '*1_000_000]*200, 'b', *[' '*1_000_000]*200])))==200_000_002
    assert time.time()-start<6 # where each fragment is joined to all before it: half a minute and more

def test_emoji_and_a_hundred_thousand_characters(tmp_path):
    texts = ['\U0001F600\U0001F468\u200d\U0001F469\u200d\U0001F467', ' '.join(texts_like(900))[:100_000], '\0', '\ufeff', 'the', 'e\u0301'*9, *texts_like(9)]
    for style in ('bert','gpt2','xlm_roberta'):
        tok = tiny_tok(style)
        a,b = (lm_dls(o, tok, seq_len=32, bs=4, valid_pct=.4, device='cpu') for o in (TokenStore.build(texts, tok, tmp_path/style), texts))
        for dl in ('train','valid'):
            for x,y in zip(getattr(a, dl), getattr(b, dl), strict=True): assert torch.equal(x[0].as_subclass(torch.Tensor), y[0].as_subclass(torch.Tensor))
        assert 2<=len(TokenStore.build(['x'*100_000], tok, tmp_path/f'{style} x')[0]) # a word that no model knows is cut somewhere

def test_a_text_too_long_for_memory_is_named(caplog, monkeypatch):
    import fastformers.text.tokenizer as tokens
    monkeypatch.setattr(tokens, '_long', 5000)
    texts = ['a film','b film','c film','x '*2600,'y '*2400]
    lm_dls(texts, tiny_tok('bert'), device='cpu')
    assert caplog.text.count('the text at position 3 has 5,200 characters: the tokenizer needs about 0.0 GB')==1 and '`TokenStore`, which reads it in pieces' in caplog.text

@pytest.mark.parametrize('bad', [None, float('nan'), pd.NA, 3, b'bytes', ['a']], ids=repr)
def test_what_is_no_text_is_named_and_nothing_is_lost(bad, tmp_path, small_chunks):
    texts,tok = texts_like(300),tiny_tok('bert')
    mixed = [*texts[:280], bad, *texts[280:]]
    for source in (mixed, (o for o in mixed), pd.Series(mixed, dtype=object), pd.DataFrame(dict(text=mixed))):
        with pytest.raises(TypeError, match='expected a text, got .* at position 280; '): TokenStore.build(source, tok, tmp_path/'s')
    with RaggedWriter(tmp_path/'s', 'u2', json.loads((tmp_path/'s.building/manifest.jsonl').read_bytes().split(b'\n')[0].replace(b'"format":1,"dtype":"<u2",', b''))) as w: assert len(w.chunks)>5
    with pytest.raises(TypeError, match='280'): lm_dls(mixed, tok)
    assert data(TokenStore.build(texts, tok, tmp_path/'s'))==data(TokenStore.build(texts, tok, tmp_path/'t'))

@pytest.mark.parametrize('name,content,match', [('a.txt','','holds no text'), ('a.txt','\n \n','holds no text'), ('a.csv','text,n\n','holds no text'), ('a.jsonl','\n','holds no text'), ('d/a.md','x','no .txt or .txt.gz files in')])
def test_a_source_without_text_is_refused(name, content, match, tmp_path):
    (tmp_path/'d').mkdir(); (tmp_path/name).write_text(content)
    for source in ([], iter(()), pd.DataFrame(dict(text=[])), (tmp_path/name).parent if 'd/' in name else tmp_path/name):
        with pytest.raises(ValueError, match=match if isinstance(source, Path) else 'the source holds no text; nothing was built'): TokenStore.build(source, tiny_tok('bert'), tmp_path/'s')
    assert not (tmp_path/'s').exists()

def test_documents_of_one_token_train(tmp_path):
    for source in (['the']*20, TokenStore.build(['the']*20, tiny_tok('bert'), tmp_path/'s')):
        learn = lm_learner(lm_dls(source, tiny_tok('bert'), bs=4, device='cpu'), tiny_arch('bert', num_hidden_layers=1), pretrained=False)
        with learn.no_bar(), learn.no_logging(): learn.fit(1)
        assert np.isfinite(learn.recorder.values[-1]).all()

def test_rows_longer_than_the_model_takes_are_refused(tmp_path):
    texts,tok = [' '.join(texts_like(60))]*2,tiny_tok('bert')
    for source in (texts, TokenStore.build(texts, tok, tmp_path/'s')):
        dls = lm_dls(source, tok, seq_len=100, valid_pct=.5, device='cpu')
        with pytest.raises(ValueError, match='the longest text has 100 tokens, the model takes 64; build the dls with .*`seq_len=64` for a language model'):
            lm_learner(dls, tiny_arch('bert', max_position_embeddings=64), pretrained=False)

# ---- the command that kills

def test_the_killing_command_tells_equal_from_different(tmp_path):
    (tmp_path/'k.py').write_text("""import json, os, random, sys, time
from pathlib import Path
import kills
def counts(d, src, say, spoil=False):
    f = d/'n'
    n = int(f.read_text() or 0) if f.exists() else 0
    while n<60:
        n += 1
        (d/'m').write_text(str(n)); (d/'m').replace(f)
        say(0, n); time.sleep(.004)
    (d/'ckpt').mkdir(exist_ok=True)
    return dict(n=n, starts=0 if not spoil else int(time.time()*1e9))
(Path(sys.argv[1])/'w').mkdir()
rng = random.Random(3)
for spoil in (False, True):
    (d := Path(sys.argv[1])/f'w{spoil}').mkdir()
    kills.moment = lambda kind, *args, was=kills.moment: was('time', *args)
    r = kills.phase('stage x', lambda *args: counts(*args, spoil=spoil), d, 3, rng, lambda o: None)
    print([o['verdict'] for o in r['rows']])
""")
    r = subprocess.run([sys.executable, tmp_path/'k.py', tmp_path], env={**env, 'PYTHONPATH':os.pathsep.join([str(benchmarks), *sys.path])}, capture_output=True, text=True, timeout=120)
    assert r.stdout.split('\n')[:2]==["['equal', 'equal', 'equal']", "['starts', 'starts', 'starts']"], r.stdout+r.stderr
