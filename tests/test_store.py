"A token store: documents as the tokenizer gives them, batches equal to those of a list, flat memory, nothing half-written or forged is opened"
import json, os, random, signal, subprocess, sys
import numpy as np, pandas as pd, pytest, torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from fastformers.data.block import lm_dls
from fastformers.learner.core import lm_learner
import fastformers.papers.sentence_pairs # rows of two segments
from fastformers.testing import tiny_arch, tiny_df, tiny_styles, tiny_tok
from fastformers.text.core import TensorTokens
from fastformers.text.store import TokenStore
from fastformers.text.encode import HFTokenizer

names = 'tokens.bin','ends.bin','keys.bin'

def texts_like(n, seed=0, longest=60):
    "`n` texts of words of the tiny reviews"
    words,rng = ' '.join(tiny_df().text).split(),random.Random(seed)
    return [' '.join(rng.choices(words, k=rng.randrange(1, longest))) for _ in range(n)]

odd = ['', ' ', 'one', '[SEP] <pad> [MASK] </s> <|endoftext|> are words', 'caf\u00e9 \U0001F600', 'lone \ud800 surrogate', '\0', '\ufeff', 'e\u0301'*9,
       '\U0001F468\u200d\U0001F469\u200d\U0001F467', 'x'*3000]

def batches_equal(a, b):
    for x,y in zip(a, b, strict=True):
        assert type(x[0]) is TensorTokens
        assert all(torch.equal(p.as_subclass(torch.Tensor), q.as_subclass(torch.Tensor)) for p,q in zip(x, y, strict=True))

# ---- what is in it

@pytest.mark.parametrize('style', tiny_styles)
def test_documents_are_what_the_tokenizer_gives(style, tmp_path):
    texts,tok = [*tiny_df().text, *odd],HFTokenizer(tiny_tok(style))
    store = TokenStore.build(texts, tok, tmp_path/'s')
    assert len(store)==len(texts) and all(type(o) is TensorTokens for o in store)
    special = tok.tok('a', return_special_tokens_mask=True)['special_tokens_mask']
    pre,post = special.index(0),special[::-1].index(0)
    for o,t in zip(store, texts):
        want = tok(t).ids.tolist()
        assert o.ids.tolist()==want[pre:len(want)-post], t[:50]

@pytest.mark.parametrize('packing', ['doc-sentences','full-sentences','segment-pair'])
@pytest.mark.parametrize('style', ['bert','roberta','xlnet','t5'])
def test_batches_equal_those_of_a_list(style, packing, tmp_path):
    texts = ['', *texts_like(60), 'one', *odd]
    store = TokenStore.build(texts, tok := tiny_tok(style), tmp_path/'s')
    for kw in (dict(bs=8), dict(bs=8, max_tokens=100, seed=7), dict(bs=5, valid_pct=.4, seq_len=12)):
        a,b = (lm_dls(o, tok, packing=packing, device='cpu', **kw) for o in (store, texts))
        for dl in ('train','valid','train'): batches_equal(getattr(a, dl), getattr(b, dl)) # the second pass is shuffled anew

def test_a_learner_trains_on_it_and_workers_read_it(tmp_path):
    dls = lm_dls(TokenStore.build(texts_like(40), tok := tiny_tok('bert'), tmp_path/'s'), tok, bs=8, device='cpu')
    learn = lm_learner(dls, tiny_arch('bert'), pretrained=False)
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
    assert np.isfinite(learn.recorder.values[-1]).all()
    for a,b in zip(dls.valid, dls.valid.new(num_workers=2), strict=True): assert torch.equal(a[0], b[0])

def test_a_row_is_read_when_it_is_asked_for(tmp_path):
    "A corpus larger than memory trains: nothing but small arrays of numbers is held for the rows"
    store = TokenStore.build(texts_like(200), tok := tiny_tok('bert'), tmp_path/'s')
    dls = lm_dls(store, tok, bs=8, seq_len=32, device='cpu')
    assert len(dls.train_ds.items)==len(dls.train_ds) and not any(isinstance(o, (list,dict)) for o in vars(dls.train_ds.items).values())

def big_tok(n):
    "A tokenizer of words with `n` tokens, made as BERT's"
    special = '[PAD] [UNK] [CLS] [SEP] [MASK]'.split()
    t = Tokenizer(models.WordLevel({**{o:i for i,o in enumerate(special)}, **{f'w{i}':i for i in range(5, n)}}, unk_token='[UNK]'))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    t.post_processor = processors.TemplateProcessing(single='[CLS] $A [SEP]', pair='[CLS] $A [SEP] $B:1 [SEP]:1', special_tokens=[('[CLS]',2),('[SEP]',3)])
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token='[PAD]', unk_token='[UNK]', cls_token='[CLS]', sep_token='[SEP]', mask_token='[MASK]')

@pytest.mark.parametrize('n,dtype', [(65_536,'uint16'), (65_537,'uint32'), (70_000,'uint32')])
def test_vocabularies_above_two_bytes_take_four(n, dtype, tmp_path):
    store = TokenStore.build([f'w5 w{n-1} w6'], big_tok(n), tmp_path/'s')
    assert (store.tokens.dtype,store[0].ids.tolist())==(dtype,[5,n-1,6])

# ---- what may go wrong

def test_a_killed_build_leaves_nothing_and_begins_anew(tmp_path):
    tok = tiny_tok('bert')
    TokenStore.build(['old'], tok, tmp_path/'s')
    code = """import sys
from fastformers.text.store import TokenStore
from fastformers.testing import tiny_tok
def texts():
    while True: print('on', flush=True); yield 'a film '*10_000
TokenStore.build(texts(), tiny_tok('bert'), sys.argv[1], overwrite=True)"""
    p = subprocess.Popen([sys.executable, '-W', 'ignore', '-c', code, tmp_path/'s'], stdout=subprocess.PIPE, env={**os.environ, 'PYTHONPATH':os.pathsep.join(sys.path)})
    for _ in range(30): p.stdout.readline()
    p.send_signal(signal.SIGKILL); p.wait(); p.stdout.close()
    assert len(TokenStore(tmp_path/'s'))==1 and len(os.listdir(tmp_path))==2
    assert len(TokenStore.build(['new','film'], tok, tmp_path/'s', overwrite=True))==2 and os.listdir(tmp_path)==['s']

@pytest.mark.parametrize('name', names)
def test_a_file_that_is_cut_short_is_refused(name, tmp_path):
    f = TokenStore.build(texts_like(20), tiny_tok('bert'), tmp_path/'s').path/name
    whole = f.read_bytes()
    for data in (b'', whole[:-1], whole[:-8]):
        f.write_bytes(data)
        with pytest.raises(ValueError, match='mmap'): TokenStore(tmp_path/'s')

def test_a_forged_store_does_not_crash_the_interpreter(tmp_path):
    store = TokenStore.build(texts_like(20), tiny_tok('bert'), tmp_path/'s')
    for dtype in ('|O','object','int64','float32','<M8[s]', None, 3):
        (store.path/'store.json').write_text(json.dumps({**store.meta, 'dtype':dtype}))
        with pytest.raises(ValueError, match='another format'): TokenStore(store.path)
    (store.path/'store.json').write_text(json.dumps(store.meta))
    ends = np.fromfile(store.path/'ends.bin', '<u8')
    (ends*10**15)[::-1].tofile(store.path/'ends.bin') # outside of the file, and backwards
    assert all(len(o)<=len(store.tokens) for o in TokenStore(store.path))

@pytest.mark.parametrize('bad', [None, float('nan'), pd.NA, 3, b'bytes', ['a']], ids=repr)
def test_what_is_no_text_is_named(bad, tmp_path):
    mixed = [*texts_like(280), bad, 'fine']
    for source in (mixed, (o for o in mixed), pd.DataFrame(dict(text=mixed))):
        with pytest.raises(TypeError, match='280'): TokenStore.build(source, tiny_tok('bert'), tmp_path/'s')
    assert not os.listdir(tmp_path)

@pytest.mark.parametrize('name,content', [('a.txt','\n \n'), ('a.csv','text,n\n'), ('d/a.md','x')])
def test_a_source_without_text_is_refused(name, content, tmp_path):
    (tmp_path/'d').mkdir(); (tmp_path/name).write_text(content)
    for source in ([], iter(()), pd.DataFrame(dict(text=[])), (tmp_path/name).parent if 'd/' in name else tmp_path/name):
        with pytest.raises(ValueError, match='no text|no rows'): TokenStore.build(source, tiny_tok('bert'), tmp_path/'s')
    assert not (tmp_path/'s').exists()

def test_documents_of_one_token_train(tmp_path):
    texts = ['the','a','is']*10
    for source in (texts, TokenStore.build(texts, tiny_tok('bert'), tmp_path/'s')):
        learn = lm_learner(lm_dls(source, tiny_tok('bert'), bs=4, valid_pct=.5, device='cpu'), tiny_arch('bert', num_hidden_layers=1), pretrained=False)
        with learn.no_bar(), learn.no_logging(): learn.fit(1)
        assert np.isfinite(learn.recorder.values[-1]).all()

def test_rows_longer_than_the_model_takes_are_refused(tmp_path):
    texts,tok = [' '.join(texts_like(60, seed=i)) for i in range(8)],tiny_tok('bert')
    for source in (texts, TokenStore.build(texts, tok, tmp_path/'s')):
        dls = lm_dls(source, tok, seq_len=100, valid_pct=.5, device='cpu')
        with pytest.raises(ValueError, match='the longest text has 100 tokens, the model takes 64'):
            lm_learner(dls, tiny_arch('bert', max_position_embeddings=64), pretrained=False)
