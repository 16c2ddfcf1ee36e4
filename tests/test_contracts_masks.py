"Masks are a function of (seed, pass, content, position); 15 % of the ordinary tokens, 80/10/10"
import math, pytest, torch
from itertools import combinations
from fastai.callback.core import Callback
from fastformers.text.core import as_tokens
from fastformers.learner.core import lm_learner
from fastformers.objectives.core import hash_below, splitmix64
from fastformers.objectives.mlm import budget
from fastformers.papers.spanbert import SpanMLM
from fastformers.text.tokenizer import ordinary_ids
from test_contracts_common import *

pytestmark = pytest.mark.exact

def originals(x, y):
    "The ids of each row before masking, padding left out"
    ids = torch.where(y!=-100, y, x.ids)
    return [tuple(i[r].tolist()) for i,r in zip(ids, x.real)]

def masks(dl):
    "One pass over `dl`: {text: (positions predicted, what is put there)}"
    res = {}
    for x,y in dl:
        x,y = as_tokens(x),y.as_subclass(Tensor)
        for k,p,i,r in zip(originals(x, y), x.predicted, x.ids, x.real): res[k] = p[r].nonzero().flatten().tolist(), i[p].tolist()
    return res

def many_rows(tok, n=400, seed=0):
    "`n` rows of random ordinary ids, from 1 to 300 of them, between the template's special tokens"
    g,words = torch.Generator().manual_seed(seed),ordinary_ids(tok.tok)
    t = tok('a').ids.tolist(); at = next(i for i,o in enumerate(t) if o in set(words.tolist()))
    draw = lambda k: words[torch.randint(len(words), (k,), generator=g)].tolist()
    rows = [TensorTokens(t[:at]+draw(1+i%300)+t[at+1:]) for i in range(n)]
    return torch.stack([o for o, in PadTokens(tok)([(r,) for r in rows])]).as_subclass(TensorTokens)

@pytest.mark.parametrize('p', [.15, .3])
@pytest.mark.parametrize('style,side', [('bert',None), ('roberta','left'), ('xlm_roberta',None), ('xlnet',None)])
def test_each_row_has_exactly_its_share_of_ordinary_tokens_masked(style, side, p):
    tok = tokenizer(style, side)
    special,x = torch.tensor(tok.tok.all_special_ids), many_rows(tok)
    new,y = MLM(tok, p=p)((x,), split_idx=0)
    ok = x.real & ~torch.isin(x.ids, special)
    assert new.predicted.sum(1).tolist()==[max(round(p*n), 1) for n in ok.sum(1).tolist()]
    assert not (new.predicted & ~ok).any() and torch.equal(new.predicted, y!=-100) and torch.equal(y[y!=-100], x.ids[y!=-100])
    assert torch.equal(new.ids[~new.predicted], x.ids[~new.predicted]) and torch.equal(new.attention_mask, x.attention_mask)

def test_integers_give_the_masks_of_float64():
    "Some GPUs lack float64, with which shares were computed once"
    g = torch.Generator().manual_seed(0)
    h = torch.cat([torch.randint(-2**63, 2**63-1, (200_000,), generator=g), torch.tensor([0,-1,1,2**63-1,-2**63,2047,2048])])
    unit = ((h >> 11) & ((1<<53)-1)).double()/(1<<53)
    near = [float(unit[i])+e*2**-53 for i in range(20) for e in (-1,0,1)]                      # a hash at the edge
    for share in [.8, .8+.1, .9, .5, 1/3, 1., 0., *torch.rand(50, generator=g, dtype=torch.float64).tolist(), *near]:
        assert torch.equal(hash_below(h, share), unit<share)
    ok = torch.rand(400, 513, generator=g)<torch.rand(400, 1, generator=g)
    n = ok.sum(1)
    for p in [.15, .3, .5, 1., 1/7, .05, .0001, *torch.rand(100, generator=g, dtype=torch.float64).tolist()]:
        assert torch.equal(budget(ok, p), (n.double()*p).round().long().clamp(min=1).minimum(n))
    assert budget(torch.zeros(2, 5).bool(), .5).tolist()==[0,0] and budget(torch.ones(3, 0).bool(), .5).tolist()==[0,0,0]
    span = SpanMLM(tiny_tok('bert'))
    u = ((splitmix64(h+3) >> 11) & ((1<<53)-1)).double()/(1<<53)*(1-.8**10)
    assert torch.equal(span.span_lengths(h), 1+(torch.log1p(-u)/math.log(.8)).long())

def test_80_10_10_of_the_predicted_tokens():
    tok = tokenizer('bert')
    words,hit = ordinary_ids(tok.tok),{'mask':0, 'other':0, 'same':0}
    drawn = []
    for seed in range(4):
        x,y = MLM(tok, seed=seed)((many_rows(tok, seed=seed),), split_idx=0)
        i,o = x.ids[x.predicted], y[x.predicted]
        hit['mask'] += int((i==tok.tok.mask_token_id).sum()); hit['same'] += int((i==o).sum()); hit['other'] += int(((i!=o)&(i!=tok.tok.mask_token_id)).sum())
        drawn.append(i[(i!=o)&(i!=tok.tok.mask_token_id)])
    n,drawn,W = sum(hit.values()),torch.cat(drawn),len(words)
    assert n>20_000
    for k,p in dict(mask=.8, other=.1*(1-1/W), same=.1*(1+1/W)).items(): assert abs(hit[k]/n-p) < 4*(p*(1-p)/n)**.5, (k, hit[k]/n)
    assert torch.isin(drawn, words).all() # never a special one
    c = torch.bincount(torch.searchsorted(words, drawn), minlength=W)
    assert ((c-c.float().mean())**2/c.float().mean()).sum() < W+5*(2*W)**.5 # chi-square: all words alike

def test_every_position_is_as_likely_as_any_other():
    tok = tokenizer('bert')
    g = torch.Generator().manual_seed(0)
    x = TensorTokens(torch.randint(5, 500, (8000,20), generator=g))
    rate = MLM(tok)((x,), split_idx=0)[0].predicted.float().mean(0)
    assert abs(rate.sum()-3)<1e-4 and bool(((rate-.15).abs() < 4.5*(.15*.85/8000)**.5).all())

@pytest.fixture(scope='module')
def docs(): return tiny_df()

def lm(df, bs=7, seed=42, style='bert', side=None, **kwargs):
    tok = tokenizer(style, side)
    return lm_dls(df, tok, MLM(tok, seed=kwargs.pop('mask_seed', seed)), seq_len=64, bs=bs, seed=seed, packing='full-sentences', **kwargs)

def test_validation_masks_are_fixed(docs):
    dls = lm(docs)
    first = masks(dls.valid)
    for _ in dls.train: pass
    for _ in dls.train: pass
    assert masks(dls.valid)==first and len(first)>3

def test_validate_gives_the_same_value_twice(docs):
    learn = quiet(lm_learner(lm(docs), tiny_arch('bert')))
    a = learn.validate()
    learn.fit(1, lr=0.)
    assert learn.validate()==a

def test_masks_do_not_depend_on_batch_size_or_token_budget(docs):
    runs = [[masks(dl) for dl in (dls.train, dls.train, dls.valid)] for dls in (lm(docs, 1), lm(docs, 7), lm(docs, 64), lm(docs, max_tokens=200))]
    assert all(r==runs[0] for r in runs)

def test_masks_do_not_depend_on_workers(docs):
    a,b = lm(docs),lm(docs)
    dl = b.train.new(num_workers=2)
    for _ in range(2): assert masks(a.train)==masks(dl)
    assert masks(a.valid)==masks(b.valid.new(num_workers=2))

def test_masks_are_new_on_each_pass_and_repeat_with_the_seed(docs):
    a,b,c,d = lm(docs),lm(docs),lm(docs, seed=43),lm(docs, mask_seed=43)
    passes = [masks(a.train) for _ in range(4)]
    assert [masks(b.train) for _ in range(4)]==passes
    for p,q in combinations(passes, 2): assert p.keys()==q.keys() and all(p[k][0]!=q[k][0] for k in p)
    other = masks(d.train)
    assert other.keys()==passes[0].keys() and all(other[k][0]!=passes[0][k][0] for k in other)
    assert masks(c.train).keys()!=passes[0].keys() or masks(c.train)!=passes[0]

class Record(Callback):
    "The masks of each training pass"
    run_valid = False
    def before_fit(self):
        if not hasattr(self, 'passes'): self.passes = []
    def before_train(self): self.passes.append([])
    def before_batch(self): self.passes[-1].append((self.x, self.y))

def test_passes_count_on_over_two_fits_of_one_learner(docs):
    rec = Record()
    learn = quiet(lm_learner(lm(docs), tiny_arch('bert'), cbs=rec))
    learn.fit(2); learn.fit(2)
    passes,fresh = [masks(p) for p in rec.passes], lm(docs)
    assert len(passes)==4
    for p,q in combinations(passes, 2): assert p.keys()==q.keys() and all(p[k][0]!=q[k][0] for k in p)
    assert passes==[masks(fresh.train) for _ in range(4)] # learning or not makes no difference

def test_another_loader_in_the_middle_of_a_pass_changes_no_mask(docs):
    a,b = lm(docs),lm(docs)
    for dls in (a,b): masks(dls.train)
    whole,got = [o for o in a.train],[]
    for o in b.train:
        got.append(o)
        b.valid.one_batch()
    assert masks(got)==masks(whole) and len(got)>2

# ---- sums over tokens divided by their number

@pytest.mark.parametrize('family,style', [('bert','bert'), ('gpt2','gpt2')])
@pytest.mark.parametrize('bs', [1, 3, 64])
def test_validation_figures_are_exact_token_means(docs, family, style, bs):
    obj = objective(family)
    dls = lm_dls(docs, obj.tfm, obj, seq_len=32, bs=bs)
    model = language_model(family)
    learn = quiet(lm_learner(dls, tiny_arch(family)))
    learn.model.load_state_dict(model.state_dict())
    total,right,n,lens = 0.,0,0,set()
    for o, in dls.valid_ds:
        x,y = obj((o[None],), split_idx=1)
        with torch.no_grad(): logits = model.hf(x.ids).logits[0].double()
        at = (y[0]!=-100).nonzero().flatten(); lens.add(len(at))
        for i in at.tolist(): total -= logits[i].log_softmax(-1)[y[0,i]].item(); right += int(logits[i].argmax()==y[0,i]); n += 1
    loss,acc,ppl,_ = learn.validate()
    assert len(lens)>2 # rows are unequal
    assert abs(loss-total/n)<1e-5 and abs(acc-right/n)<1e-6
    assert ppl==pytest.approx(torch.tensor(total/n).exp().item(), rel=1e-4)
