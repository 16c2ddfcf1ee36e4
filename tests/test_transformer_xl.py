"Transformer-XL equals the paper's formula, reads a row in segments as it reads it whole, and goes through all stages"
import math
import pytest, torch
from transformers import AutoModel, AutoModelForCausalLM
from fastai.callback.core import Callback
from fastai.torch_core import set_seed
from fastformers.callback.resume import Resume
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.inference.lm_predictor import LMPredictor, lm_from_hf
from fastformers.inference.predictor import from_hf
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.models.core import LanguageModel, padding_safe
from fastformers.models.load import fit_vocab
from fastformers.models.families import group_names, is_causal, layer_groups
from fastformers.papers.transformer_xl import RelativeAttention, TransformerXLConfig, distances
from fastformers.testing import check_family, tiny_df, tiny_tok
from fastformers.text.encode import HFTokenizer

pytestmark = pytest.mark.exact
small = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, segment=5, mem_len=7)
tok = tiny_tok('gpt2')
def config(**kwargs): return TransformerXLConfig(**{'vocab_size':len(tok), **small, **kwargs})

def loud(model):
    "Larger weights: random ones predict nearly the same everywhere"
    for p in model.parameters(): p.data = 4*p if p.ndim==2 else p+.3*torch.randn_like(p)
    return model.eval()

def network(**kwargs):
    torch.manual_seed(0)
    return loud(AutoModelForCausalLM.from_config(config(**kwargs)))

def some_ids(*shape): return torch.randint(0, len(tok), shape, generator=torch.Generator().manual_seed(1))

def by_hand(m, h, mem):
    "Equations of section 3.3 with a loop over heads, queries and keys"
    x,d,heads = torch.cat([mem, h], 1),m.u.shape[-1],len(m.u)
    n,q = x.shape[1],h.shape[1]
    out = torch.zeros(*h.shape[:2], heads, d)
    def rows(lin, x, a): return lin(x)[...,a*d:(a+1)*d]
    for b in range(len(h)):
        for a in range(heads):
            W = [rows(lin, x[b], a) for lin in (m.query, m.key, m.value)]
            for i in range(n-q, n):
                scores = []
                for j in range(i+1):
                    freq = [10_000**(-2*k/(heads*d)) for k in range(heads*d//2)]
                    R = torch.tensor([math.sin((i-j)*f) for f in freq]+[math.cos((i-j)*f) for f in freq])
                    r = rows(m.distance, R, a)
                    Q,K = W[0][i],W[1][j]
                    scores.append((Q@K + Q@r + m.u[a,0]@K + m.v[a,0]@r)/d**.5)                 # (a) + (b) + (c) + (d)
                out[b,i-n+q,a] = torch.stack(scores).softmax(0)@W[2][:i+1]
    return m.out(out.flatten(2))

@pytest.mark.parametrize('mem_len', [0,3])
def test_attention_equals_the_formula(mem_len):
    torch.manual_seed(0)
    m = loud(RelativeAttention(config(hidden_size=8, num_attention_heads=2)))
    h,mem = torch.randn(2, 4, 8, requires_grad=True),torch.randn(2, mem_len, 8)
    a,b = m(h, mem, distances(4+mem_len, 8)),by_hand(m, h, mem)
    assert torch.allclose(a, b, atol=1e-5)
    grads = [torch.autograd.grad(o.pow(2).sum(), [h, *m.parameters()]) for o in (a, b)]
    for p,q in zip(*grads): assert torch.allclose(p, q, atol=2e-5*float(p.abs().max()), rtol=1e-4) # rounding of the largest is in all of them

@torch.no_grad()
def test_segments_with_a_long_memory_equal_the_whole_row():
    ids = some_ids(2, 23)
    whole = network(segment=23)(ids).logits
    def gap(**kwargs): return float((network(**kwargs)(ids).logits-whole).abs().max())
    assert gap(segment=5, mem_len=20)<1e-5 and gap(segment=1, mem_len=22)<1e-5
    assert gap(segment=5, mem_len=19)>1e-3 and gap(segment=5, mem_len=0)>1e-3                  # one state less is seen

@torch.no_grad()
def test_a_text_in_parts_equals_the_whole_text():
    model,ids = network(),some_ids(2, 23)
    whole,mems,parts = model(ids).logits,None,[]
    for x in ids.split([1,6,3,13], 1):
        o = model(x, mems=mems)
        parts,mems = [*parts, o.logits],o.mems
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)
    assert mems[0]==23 and all(o.shape==(2,10,32) for o in mems[1])                            # 7 before the segment, 3 of it

def test_embeddings_grow_with_the_vocabulary():
    hf = network()
    assert fit_vocab(hf, len(tok)+6)==6
    assert hf.lm_head.weight is hf.model.embed_tokens.weight and hf(some_ids(1, 4)).logits.shape[-1]==len(tok)+6

def test_memory_has_no_gradient():
    model = network(num_hidden_layers=1).model
    h = model.embed_tokens(some_ids(1, 15)).detach().requires_grad_()
    model.embed_tokens.register_forward_hook(lambda m, args, o: h)
    out = model(some_ids(1, 15)).last_hidden_state
    grad = torch.autograd.grad(out[:,-1].sum(), h)[0].abs().sum(-1)[0]
    assert bool((grad[10:]>0).all()) and bool((grad[:10]==0).all())

def test_what_any_family_promises():
    check_family(config())
    model = LanguageModel(network())
    groups = layer_groups(model)
    assert group_names(model)==['embeddings','block 1','block 2','block 3','head']
    assert sorted(id(p) for g in groups for p in g)==sorted({id(p) for p in model.parameters()})
    assert is_causal(model.body) and padding_safe(model.body)

@torch.no_grad()
def test_padding_changes_no_prediction():
    model,ids = network(),some_ids(1, 13)
    alone = model(ids).logits
    for a,b in ((4,0), (0,4), (3,2)):
        padded,mask = (torch.nn.functional.pad(o, (a,b), value=0) for o in (ids, torch.ones_like(ids)))
        assert torch.allclose(model(padded, attention_mask=mask).logits[:,a:a+13], alone, atol=1e-5)

@pytest.mark.parametrize('kwargs', [{}, dict(num_beams=3)])
def test_generation_with_and_without_the_cache(kwargs):
    model,ids = network(),some_ids(2, 8)
    lens = []
    model.model.register_forward_pre_hook(lambda m, args: lens.append(args[0].shape[1]))
    a,b = (model.generate(ids, max_new_tokens=20, do_sample=False, use_cache=o, output_logits=True, return_dict_in_generate=True, pad_token_id=0, **kwargs)
           for o in (True,False))
    assert lens[:20]==[8]+[1]*19 and lens[20:]==[*range(8, 28)]
    assert a.sequences.tolist()==b.sequences.tolist() and a.sequences.shape[1]==28
    assert torch.allclose(torch.stack(a.logits), torch.stack(b.logits), atol=1e-5)

def test_texts_continue_in_a_list_as_alone():
    lm = LMPredictor(LanguageModel(network()), HFTokenizer(tok))
    texts = ['A wonderful film.', 'The soup was cold, and nobody in our row saw the end coming!', 'Fine']
    alone = [lm.generate(o, max_new_tokens=10, do_sample=False) for o in texts]
    assert lm.generate(texts, max_new_tokens=10, do_sample=False)==alone and len({*alone})==3

def learner(cbs=None, **kwargs):
    set_seed(1)
    return lm_learner(lm_dls(tiny_df(), tok, seq_len=24, bs=8, device='cpu'), config(num_hidden_layers=2, **kwargs), precision='fp32', cbs=cbs)

def fit(learn, stop=None):
    with learn.no_bar(), learn.no_logging():
        try: learn.fit_one_cycle(2, 3e-3, cbs=stop)
        except KeyboardInterrupt: pass
    return learn

@pytest.fixture(scope='module')
def lm(tmp_path_factory): return fit(learner(Resume(tmp_path_factory.mktemp('whole'), every=3)))

def test_a_run_that_was_stopped_ends_as_the_whole_one(lm, tmp_path):
    class Stop(Callback):
        order = 2000
        def after_batch(self):
            if self.training and self.train_iter==12: raise KeyboardInterrupt
    cut = fit(learner(Resume(tmp_path, every=5)), Stop())
    assert cut.train_iter==12
    again = fit(learner(Resume(tmp_path, every=5)))
    assert all(map(torch.equal, lm.model.state_dict().values(), again.model.state_dict().values()))
    assert [*map(float, lm.recorder.losses)]==[*map(float, again.recorder.losses)]

def test_directories_open_and_a_classifier_trains(lm, tmp_path):
    lm.save_encoder(tmp_path/'lm')
    ids,model = some_ids(1, 9),lm.model.eval()
    with torch.no_grad():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path/'lm').eval()(ids).logits, model.hf(ids).logits)
        assert torch.equal(AutoModel.from_pretrained(tmp_path/'lm').eval()(ids).last_hidden_state, model.body(ids).last_hidden_state)
    assert lm_from_hf(tmp_path/'lm', device='cpu').score('A wonderful film.').total[0]<0
    dls = classifier_dls(tiny_df(), tmp_path/'lm', bs=8, device='cpu')
    clas = classifier_learner(dls, tmp_path/'lm', precision='fp32', hidden_states='mix')
    assert not clas.model.loaded.new
    before = {k:p.detach().clone() for k,p in clas.model.named_parameters()}
    with clas.no_bar(), clas.no_logging():
        clas.fit(1, 1e-3)
        preds = clas.get_preds()[0]
    assert all(not torch.equal(p, before[k]) for k,p in clas.model.named_parameters() if 'embeddings' not in k)
    texts = tiny_df().text[tiny_df().is_valid].tolist()
    assert torch.allclose(torch.as_tensor(from_hf(clas.to_hf(tmp_path/'clas'), device='cpu').scores(texts)), preds, atol=1e-5)

def test_bfloat16(lm):
    x = torch.randint(0, len(tok), (2,12))
    with torch.autocast('cpu', dtype=torch.bfloat16): a = lm.model.hf(x).logits
    assert a.isfinite().all() and float((a.float()-lm.model.hf(x).logits).abs().max())<.1
