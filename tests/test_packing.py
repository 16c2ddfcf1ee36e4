"Documents to rows: what each format holds, what it leaves out, and that texts which share a row do not see one another"
import copy, logging, pickle, random, pytest, torch
from fastformers.models import blocks; from fastformers.models import core as models
from fastformers.models.blocks import find_blocks
from fastformers.learner.core import lm_learner
from fastformers.models.core import ModelInputs, padding_safe
from fastformers.data.packing import Sentences, fill_rows, pack_tokens, packings, store_rows
from fastformers.text.store import TokenStore
from fastformers.testing import tiny_families
from fastformers.text.tokenizer import pair_tokens, separates_pairs
from test_contracts_common import *
import numpy as np

apart = 'xlm flaubert deberta-v2 deberta big_bird convbert fnet funnel xlnet openai-gpt bloom'.split() # families that get the texts of a row one by one
everyone = list(tiny_families)
no_lm = 't5 mt5 umt5 xlnet'.split()
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
        assert [i for a,b in got for i in a+b]==ids and all(a and b for a,b in got) and max(map(len, rows))<=seq_len
        if len(rows)==1 and seq_len==500:
            ends = Sentences(tok)(np.array(ids))
            a,b = map(len, got[0])
            want = min(ends[:-1], key=lambda o: abs(2*o-len(ids)), default=(len(ids)+1)//2)
            assert a==want

@pytest.mark.parametrize('style', ['bert','roberta','xlnet'])
def test_a_pair_is_in_the_template_of_the_tokenizer(style):
    tok = pairs_tok(style)
    for how in packings[2:4]:
        row, = pack_tokens(tok.encode_batch(['Nothing happens. Nobody cares!']), tok, 64, how)
        want = tok(('Nothing happens.', 'Nobody cares!'))
        if style=='bert': assert torch.equal(row, want)
        assert len(row)==len(want) and torch.equal(row.segment_ids, want.segment_ids)

def test_pairs_of_sentences_are_neighbours_cut_to_their_half():
    tok = pairs_tok('bert')
    doc = 'One two. Three four! Is this five? '+'long '*30+'.'
    rows = pack_tokens(tok.encode_batch([doc, 'One. Two. Three.', 'no end here', 'a']), tok, 19, 'sentence-pair')
    s = [tok.decode(o).replace(' ', '') for o in rows]
    assert s[0]=='onetwo.|threefour!' and s[2]=='one.|two.' and s[3]=='two.|three.' and len(rows)==5
    a,b = own(tok, rows[1])
    assert len(b)==8 and len(a)<=8 # the long sentence keeps its beginning
    assert max(map(len, rows))<=19

def test_what_a_format_leaves_out_is_said(caplog):
    tok = pairs_tok('bert')
    with caplog.at_level(logging.INFO): pack_tokens(tok.encode_batch(['a', 'One. Two.']), tok, 32, 'segment-pair')
    n = sum(len(o)-2 for o in tok.encode_batch(['a', 'One. Two.']))
    assert f'1 of {n} tokens are in no row' in caplog.text

def test_pairs_need_a_separator_room_and_single_texts():
    gpt,tok = HFTokenizer(tiny_tok('gpt2')),pairs_tok('bert')
    for how in packings[2:4]:
        with pytest.raises(ValueError, match='pair_tokens'): pack_tokens(gpt.encode_batch(['One. Two.']), gpt, 32, how)
        with pytest.raises(ValueError, match='pass 7 or more'): pack_tokens(tok.encode_batch(['One. Two.']), tok, 6, how)
        with pytest.raises(ValueError, match='pair already'): pack_tokens(tok.encode_batch([('One.','Two.')]), tok, 32, how)
        assert pack_tokens([], tok, 32, how)==[]

def test_sentences_of_a_tokenizer_that_keeps_spaces_and_lines():
    tok = HFTokenizer(tiny_tok('roberta'))
    def cut(text):
        ids = tok.tok(text, add_special_tokens=False)['input_ids']
        e = Sentences(tok)(np.array(ids))
        return [tok.tok.decode(ids[a:b]) for a,b in zip([0]+e, e)]
    assert cut('It cost 3.14 then. "No!" he said')==['It cost 3.14 then.', ' "No!"', ' he said']
    assert cut('first line\nsecond line\n\nthird')==['first line\n', 'second line\n\n', 'third']
    assert cut('\n\nstart')==['\n\nstart']
    assert ''.join(cut('x'*100_000))=='x'*100_000

# ---- several texts in a row

@pytest.mark.parametrize('style', ['bert','roberta','xlnet','gpt2','t5'])
def test_blocks_hold_each_text_once_and_whole(style):
    tok = HFTokenizer(tiny_tok(style))
    docs = tok.encode_batch(docs_like())
    if style=='bert': docs += tok.encode_batch(pairs[:5])
    rows = pack_tokens(docs, tok, 48, 'doc-blocks')
    alone = pack_tokens(docs, tok, 48)
    got = [r[r.text_ids==i] for r in rows for i in r.text_ids.unique()]
    got = [o.replace(starts=torch.zeros(len(o))) for o in got]
    assert sorted(o.tolist() for o in got)==sorted(o.tolist() for o in alone)
    assert all(not r.starts[0] for r in rows) and max(map(len, rows))<=48
    assert len(rows)*48<sum(map(len, alone))*1.15
    for r in rows:
        each = [o for i in r.text_ids.unique() if (o := tok.decode(r[r.text_ids==i]))]
        assert tok.decode(r)==' | '.join(each) # shown apart, with or without special tokens between

def test_rows_are_filled_well_and_the_same_each_time():
    lengths = np.random.default_rng(0).integers(1, 60, 5000)
    rows = fill_rows(lengths, 128)
    assert sorted(i for r in rows for i in r)==list(range(5000)) and max(lengths[r].sum() for r in rows)<=128
    assert lengths.sum()/(128*len(rows))>.99 and all((a==b).all() for a,b in zip(rows, fill_rows(lengths, 128)))

@pytest.mark.parametrize('packing', packings)
@pytest.mark.parametrize('style', ['bert','roberta','xlnet'])
def test_rows_of_a_store_are_those_in_memory(style, packing, tmp_path):
    tok,docs = HFTokenizer(tiny_tok(style)),docs_like(40)
    store = TokenStore.build(docs, tok, tmp_path/'s')
    order = np.random.default_rng(0).permutation(len(docs)); splits = order[:30],order[30:]
    rows,n,lengths = store_rows(store, tok, splits, 24, packing)
    want = [pack_tokens(tok.encode_batch([docs[i] for i in s]), tok, 24, packing) for s in splits]
    assert n==len(want[0]) and [o.tolist() for o in rows]==[o.tolist() for o in want[0]+want[1]] and lengths.tolist()==[*map(len, rows)]
    again = pickle.loads(pickle.dumps(rows))
    assert torch.equal(again[len(rows)-1], rows[len(rows)-1])

# ---- texts that share a row do not see one another

def text_rows(tok, n=9): return [o for o in tok.encode_batch(texts[:n]+['Fresh fish']) if len(o)<60]

def packed_batch(tok, side='right'):
    rows = pack_tokens(text_rows(tok), tok, 64, 'doc-blocks')
    tok = copy.copy(tok); tok.left = side=='left'
    xs = [o for o, in PadTokens(tok)([(r,) for r in rows])]
    x = torch.stack([o.as_subclass(Tensor) for o in xs]).as_subclass(TensorTokens)
    assert x.text_ids.max()>0 and not x.real.all()
    return x

def one_by_one(x):
    "The texts of `x`, each a batch of its own, in the order of rows"
    return [(r,m,o.replace(starts=torch.zeros(len(o)))[None]) for r,row in enumerate(x) for i in row.text_ids.unique() for m in [(row.text_ids==i) & row.real] for o in [row[m]] if len(o)]

def grads(model): return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

@pytest.mark.parametrize('family', everyone)
def test_the_way_of_each_family(family):
    m = classifier(family)
    x = packed_batch(tokenizer(family))
    assert (m.inputs.buckets(m.body, x) is not None)==(family in apart)

@pytest.mark.parametrize('side', ['right','left'])
@pytest.mark.parametrize('family', everyone)
def test_states_in_a_row_are_those_of_the_text_alone(family, side):
    m,x = classifier(family),packed_batch(tokenizer(family), side)
    with torch.no_grad():
        h = m.states(x)
        for r,at,alone in one_by_one(x): assert gap(h[r][at], m.states(alone)[0])<1e-5*max(1., float(h.abs().max()))
        naive = m.states(x.replace(starts=torch.zeros(x.shape)))
    assert gap(naive[x.real], h[x.real])>1e-3 # it matters

@pytest.mark.parametrize('family', [f for f in everyone if f not in no_lm])
def test_loss_logits_and_gradients_in_a_row_are_those_of_the_texts_alone(family):
    torch.manual_seed(0)
    causal_ = is_causal(tiny_arch(family))
    obj = (CLM if causal_ else MLM)(tiny_tok(family))
    m = loud(obj.build(tiny_arch(family)), by=3.)
    x,y = obj((packed_batch(obj.tfm),), split_idx=0)
    pred = m(x); loss = obj.loss_func(pred, y, reduction='sum'); loss.backward()
    packed = grads(m); m.zero_grad()
    got = [pred[r,:k] for r,k in enumerate(x.predicted.sum(1).tolist())]
    want,total,seen = [[] for _ in x],0.,0
    for r,at,alone in one_by_one(x):
        t = y[r][at][None]
        if causal_: assert t[0,-1]==-100 # no text says how the next begins
        o = m(alone); k = int(alone.predicted.sum()); want[r].append(o[0,:k])
        part = obj.loss_func(o, t, reduction='sum'); total += float(part.detach()); seen += k; part.backward()
    scale = max(1., float(pred.detach().abs().max()))
    for a,b in zip(got, want): assert gap(a, torch.cat(b))<1e-5*scale
    assert seen==int((y!=-100).sum()) and abs(float(loss.detach())-total)/seen<1e-5*scale
    assert gap(packed, grads(m))<1e-5*max(1., float(packed.abs().max()))

def test_a_window_is_seen_by_the_self_test():
    "ModernBERT's local layers see all of a text under a plain mask: short texts would not show it"
    body = load_body(tiny_arch('modernbert'))[0]
    plain = blocks.Blocks('bool', False, 0, torch.float32)
    assert find_blocks(body, ModelInputs(body)).kind=='layers'
    ways = blocks._ways
    try:
        blocks._ways = lambda b: [plain]
        with torch.no_grad(): assert blocks._try_blocks(body.eval(), ModelInputs(body)) is False
    finally: blocks._ways = ways

def test_a_row_longer_than_a_causal_window_is_taken_apart():
    body = load_body(tiny_arch('mistral', sliding_window=160))[0]
    m = TextClassifier(body, None, PoolingHead(32, 3)).eval()
    row = lambda n: TensorTokens(torch.arange(20, 20+n)[None], starts=torch.arange(n)[None]==5)
    assert m.inputs.buckets(body, row(160)) is None and len(m.inputs.buckets(body, row(161)))==2
    with torch.no_grad(): assert gap(m.states(row(161))[:,5:], m.states(TensorTokens(torch.arange(25, 181)[None])))<1e-5

def test_the_fallback_is_said_once_and_leaves_no_trace(caplog, monkeypatch):
    monkeypatch.setattr(blocks, '_blocks', {})
    body = load_body(tiny_arch('fnet')); body.train()[0]
    state = torch.get_rng_state()
    with caplog.at_level(logging.WARNING):
        for _ in range(2): assert find_blocks(body, ModelInputs(body)) is False
    assert len([r for r in caplog.records if 'cannot keep texts that share a row apart' in r.message])==1
    assert body.training and torch.equal(state, torch.get_rng_state()) and all(p.grad is None for p in body.parameters())

def test_a_spoilt_model_says_nothing_about_others(monkeypatch):
    monkeypatch.setattr(blocks, '_blocks', {})
    m = classifier('bert'); bad = copy.deepcopy(m); bad.inputs.blocks = None
    with torch.no_grad():
        for p in bad.body.parameters(): p.fill_(float('nan'))
        bad.states(packed_batch(tokenizer('bert')))
    assert find_blocks(m.body, ModelInputs(m.body))

def test_half_precision_finds_the_same_way(monkeypatch):
    monkeypatch.setattr(blocks, '_blocks', {})
    for f in ('bert','mpnet'):
        body = load_body(tiny_arch(f), dtype='bfloat16')[0]
        way = find_blocks(body, ModelInputs(body))
        assert way and way.dtype==torch.bfloat16
        assert TextClassifier(body, None, PoolingHead(32, 3)).eval().states(packed_batch(tokenizer(f))).isfinite().all()

@pytest.mark.parametrize('packing', packings[2:])
def test_a_language_model_trains_on_every_format(packing):
    dls = lm_dls(texts, tiny_tok('bert'), seq_len=64, bs=8, packing=packing, device='cpu')
    learn = quiet(lm_learner(dls, tiny_arch('bert')))
    learn.fit(1, lr=1e-3)
    assert all(o==o for o in learn.validate())
    learn.get_preds(); dls.show_batch(max_n=2); learn.show_results(max_n=2)
