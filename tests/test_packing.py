"Documents to rows: what each format holds and what it leaves out"
import pickle, random, pytest, torch
import numpy as np
from fastformers.data.packing import PackedRows, pack_tokens, packings
from fastformers.learner.core import lm_learner
import fastformers.papers.sentence_pairs # rows of two segments
from fastformers.text.store import TokenStore
from fastformers.text.tokenizer import pair_tokens, separates_pairs
from test_contracts_common import *

def docs_like(n=80, seed=0):
    "`n` documents of no to seven sentences, some without an end, some of one word"
    rng,words = random.Random(seed),' '.join(texts).replace('.', '').split()
    def sentence(): return ' '.join(rng.choices(words, k=rng.choice([1,2,5,9,40])))+rng.choice(['.','!','?','...','."',''])
    return ['', 'a', '.', *(' '.join(sentence() for _ in range(rng.randrange(8))) for _ in range(n))]

def pairs_tok(style):
    tok = tiny_tok(style)
    return HFTokenizer(tok if separates_pairs(tok) else pair_tokens(tok))

def own(tok, row):
    "The ids of the first and of the second text of `row`"
    e = tok.tok.backend_tokenizer.encode('a', 'a')
    a,b = ([i for i,o in enumerate(e.sequence_ids) if o==k] for k in (0,1))
    sep,ids = e.ids[a[-1]+1:b[0]],row.ids.tolist()[a[0]:len(row)-(len(e.ids)-1-b[-1])]
    cut = next(j for j in range(len(ids)) if ids[j:j+len(sep)]==sep)
    return ids[:cut],ids[cut+len(sep):]

def inner(tok, o):
    e = tok.tok.backend_tokenizer.encode('a').sequence_ids
    at = [i for i,s in enumerate(e) if s is not None]
    return o.ids.tolist()[at[0]:len(o)-(len(e)-1-at[-1])]

# ---- pairs

@pytest.mark.parametrize('seq_len', [8, 9, 24, 64, 500])
@pytest.mark.parametrize('style', ['bert','roberta','xlnet','t5','gpt2'])
def test_pairs_of_segments_lose_nothing(style, seq_len):
    tok = pairs_tok(style)
    for text in docs_like():
        doc, = tok.encode_batch([text])
        rows,ids = pack_tokens([doc], tok, seq_len, 'segment-pair'),inner(tok, doc)
        if len(ids)==1 or not text: assert not rows; continue
        got = [own(tok, r) for r in rows]
        kept = [i for a,b in got for i in a+b]
        assert kept==ids[:len(kept)] and len(ids)-len(kept)<2 and max(map(len, rows))<=seq_len # a last token alone is no pair
        assert all(len(a)-len(b) in (0,1) for a,b in got)

@pytest.mark.parametrize('style', ['bert','roberta','xlnet'])
def test_a_pair_is_in_the_template_of_the_tokenizer(style):
    tok = pairs_tok(style)
    row, = pack_tokens(tok.encode_batch(['the soup the soup']), tok, 64, 'segment-pair')
    want = tok(('the soup', 'the soup'))
    if style=='bert': assert torch.equal(row, want)
    assert len(row)==len(want) and torch.equal(row.segment_ids, want.segment_ids)

def test_pairs_need_a_separator_and_room():
    gpt,tok = HFTokenizer(tiny_tok('gpt2')),pairs_tok('bert')
    with pytest.raises(ValueError, match='pair_tokens'): pack_tokens(gpt.encode_batch(['One. Two.']), gpt, 32, 'segment-pair')
    with pytest.raises(ValueError, match='pass 7 or more'): pack_tokens(tok.encode_batch(['One. Two.']), tok, 6, 'segment-pair')
    assert pack_tokens([], tok, 32, 'segment-pair')==[]

# ---- a corpus on disk, and training

@pytest.mark.parametrize('packing', packings)
@pytest.mark.parametrize('style', ['bert','roberta','xlnet'])
def test_rows_of_a_store_are_those_in_memory(style, packing, tmp_path):
    tok,docs = HFTokenizer(tiny_tok(style)),docs_like(40)
    store = TokenStore.build(docs, tok, tmp_path/'s')
    order = np.random.default_rng(0).permutation(len(docs)); splits = order[:30],order[30:]
    rows = PackedRows(store, tok, splits, 24, packing)
    want = [pack_tokens(tok.encode_batch([docs[i] for i in s]), tok, 24, packing) for s in splits]
    assert rows.sizes==[*map(len, want)] and [o.tolist() for o in rows]==[o.tolist() for o in want[0]+want[1]] and rows.lengths.tolist()==[*map(len, rows)]
    again = pickle.loads(pickle.dumps(rows))
    assert torch.equal(again[len(rows)-1], rows[len(rows)-1])

@pytest.mark.parametrize('packing', packings)
def test_a_language_model_trains_on_every_format(packing):
    dls = lm_dls(texts, tiny_tok('bert'), seq_len=64, bs=8, packing=packing, device='cpu')
    learn = quiet(lm_learner(dls, tiny_arch('bert')))
    learn.fit(1, lr=1e-3)
    assert all(o==o for o in learn.validate())
    learn.get_preds(); dls.show_batch(max_n=2); learn.show_results(max_n=2)
