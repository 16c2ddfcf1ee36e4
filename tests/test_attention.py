"Attention weights, gates on heads and cut heads, on tiny networks whose answers are known"
import copy, pickle
import numpy as np, pandas as pd, pytest, torch
from transformers import AutoModel
from fastformers.data.block import classifier_dls
from fastformers.inference.predictor import Predictor, from_hf
from fastformers.interpret.attention import attention_maps, gated, head_importance, head_stats, plot_attention, plot_heads
from fastformers.lens.heads import head_curve, plot_head_curve, prune_heads, rollout, top_heads
from fastformers.learner.core import classifier_learner
from fastformers.learner.save import as_predictor
from fastformers.models.adapters import add_adapters, bitfit
from fastformers.models.core import HFModel
from fastformers.models.load import load_body
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
from fastformers.text.encode import HFTokenizer

def network(family='bert', **kwargs):
    "A random network with a tokenizer, as a predictor without labels"
    torch.manual_seed(0)
    return Predictor(HFModel(*load_body(tiny_arch(family, **kwargs))), HFTokenizer(tiny_tok(family)), device='cpu')

def classifier(family='bert', **kwargs):
    torch.manual_seed(0)
    return classifier_learner(classifier_dls(tiny_df(), tiny_tok(family)), tiny_arch(family, **kwargs))

@pytest.fixture(scope='module')
def tiny(): return network()
@pytest.fixture(scope='module')
def learn():
    res = classifier()
    with res.no_bar(), res.no_logging(): res.fit_one_cycle(12, 1e-2)
    return res
texts = ['A fine film.', 'It was so dull that I left before the end.']

# weights

def test_weights_are_those_of_transformers(tiny):
    body,tok = tiny.model.body,tiny.tok.tok
    own = body.config._attn_implementation
    tokens,weights = attention_maps(tiny, texts[0])
    assert body.config._attn_implementation==own!='eager' and weights.shape==(3,4,len(tokens),len(tokens))
    enc = tok(texts[0], return_tensors='pt')
    assert tokens==tok.convert_ids_to_tokens(enc['input_ids'][0]) and np.allclose(weights.sum(-1), 1, atol=1e-5)
    eager = copy.deepcopy(body)
    eager.set_attn_implementation('eager')
    with torch.no_grad(): want = torch.cat(eager(**enc, output_attentions=True).attentions)
    assert np.allclose(weights, want, atol=1e-6)
    assert attention_maps(tiny, tuple(texts))[0].count('[SEP]')==2

@pytest.mark.parametrize('family', 'roberta modernbert xlnet gpt2 t5'.split())
def test_weights_of_families(family):
    tokens,weights = attention_maps(network(family), texts[1])
    assert weights.shape==(3,4,len(tokens),len(tokens))
    assert bool((np.triu(weights.max((0,1)), 1)==0).all())==(family=='gpt2') # which sees no later token

def test_families_without_weights():
    with pytest.raises(ValueError, match='FNetModel returns no attention weights'): attention_maps(network('fnet'), texts[0])
    squeeze = network('squeezebert')
    with pytest.raises(ValueError, match='whose sum is not 1'): attention_maps(squeeze, texts[0])

def test_nothing_stays_in_the_network(learn):
    before = as_predictor(learn).scores(texts)
    attention_maps(learn, texts[0]); head_stats(learn, texts); head_importance(learn)
    assert torch.equal(as_predictor(learn).scores(texts), before) and all(p.grad is None for p in learn.model.parameters())
    pickle.dumps(learn.model)

def test_stats_by_hand():
    even = network()
    with torch.no_grad():
        for n,p in even.model.body.named_parameters():
            if '.query.' in n: p.zero_()                         # each token looks at all alike
    stats = head_stats(even, texts[:1])
    n = len(even.tok(texts[0]))
    far = np.abs(np.arange(n)[:,None]-np.arange(n)).mean()
    assert stats.index.names==['layer','head'] and stats.index.tolist()[-1]==(3,3)
    assert np.allclose(stats, [[far, np.log2(n), 2/n]]*12, atol=1e-4)
    assert [o.get_title() for o in plot_heads(stats)]==['distance','entropy','special']

def test_rollout_by_hand():
    first,second = np.array([[1,0],[1,0.]]),np.array([[.5,.5],[0,1]])
    got = rollout(np.stack([first[None].repeat(2, 0), second[None].repeat(2, 0)]))
    assert np.allclose(got, [[.75,.25],[0,1]]@np.array([[1,0],[.5,.5]])) and np.allclose(got.sum(1), 1)
    assert plot_attention(['a','b'], got).get_xlabel()=='to'

# gates

def test_a_gate_of_0_is_a_head_of_0(learn):
    cut = copy.deepcopy(learn.model)
    with torch.no_grad(): cut.body.encoder.layer[1].attention.output.dense.weight[:,8:16] = 0   # head 1 of layer 2
    gates = torch.ones(3,4)
    predictor,whole = as_predictor(learn),as_predictor(learn).scores(texts)
    with gated(learn.model, gates): assert torch.allclose(predictor.scores(texts), whole, atol=1e-6)
    gates[1,1] = 0
    with gated(learn.model, gates): less = predictor.scores(texts)
    assert torch.allclose(less, Predictor(cut, predictor.tok, cut.task, device='cpu').scores(texts), atol=1e-6)
    assert not torch.allclose(less, whole, atol=1e-4) and torch.equal(predictor.scores(texts), whole)
    with pytest.raises(RuntimeError):
        with gated(learn.model, gates): raise RuntimeError
    assert torch.equal(predictor.scores(texts), whole)

def test_importance_is_the_slope_of_each_rows_loss(learn):
    got = head_importance(learn)
    dl = learn.dls.valid.new(bs=1, shuffle=False)
    def losses(gates):
        with gated(learn.model.eval(), gates), torch.no_grad(): return np.array([float(learn.loss_func(learn.model(x), y)) for x,y in dl])
    for layer,head in [(1,0),(2,3),(3,1)]:
        up,down = torch.ones(3,4),torch.ones(3,4)
        up[layer-1,head] += .01; down[layer-1,head] -= .01
        assert np.isclose(got[layer,head], np.abs(losses(up)-losses(down)).mean()/.02, rtol=.03, atol=1e-5)
    assert not np.allclose(head_importance(learn, learn.dls.train), got)

def test_top_heads(learn):
    score = pd.Series(range(12), pd.MultiIndex.from_product([(1,2,3),range(4)], names=['layer','head']))
    assert top_heads(score, .25).unstack().to_numpy().tolist()==[[0]*4,[0]*4,[0,1,1,1]]
    assert [top_heads(score*0, k).sum() for k in (0,.5,1)]==[0,6,12]                            # ties

def test_curve(learn):
    curve = head_curve(learn, tiny_df(), head_importance(learn), (1,.5,0), draws=2)
    def error(gates):
        with gated(learn.model, gates): answers = as_predictor(learn)(tiny_df().text)
        return np.mean([o['label']!=l for o,l in zip(answers, tiny_df().label)])
    assert np.allclose(curve.loc[1], error(torch.ones(3,4))) and np.allclose(curve.loc[0], error(torch.zeros(3,4)))
    assert np.isclose(curve.important[.5], error(top_heads(head_importance(learn), .5))) and curve.important.nunique()>1
    assert (curve.lowest<=curve.random).all() and (curve.random<=curve.highest).all()
    assert 'of the heads: error' in plot_head_curve(curve).get_title()

def test_errors_of_gates():
    for family in ('xlnet','squeezebert','fnet'):
        with pytest.raises(ValueError, match='no output projection|found no end of attention'):
            with gated(network(family).model, torch.ones(3,4)): pass
    with pytest.raises(ValueError, match='has adapters'):
        with gated(add_adapters(network().model), torch.ones(3,4)): pass
    with gated(bitfit(network().model), torch.ones(3,4)): pass

# cuts

@pytest.mark.parametrize('case', [('nomic_bert',.25,1), ('eurobert',.5,2), ('llama',.75,2), ('qwen2',.5,2)], ids=str)
def test_a_cut_network_answers_as_the_gated_one(case, tmp_path):
    family,kept,n = case
    more = {} if family=='nomic_bert' else dict(num_key_value_heads=4 if family=='llama' else 2)
    learn = classifier(family, **more)
    groups = more.get('num_key_value_heads', 4)
    score = pd.Series(np.random.default_rng(0).random(12), pd.MultiIndex.from_product([(1,2,3),range(4)], names=['layer','head']))
    small,before = prune_heads(learn, score, kept),as_predictor(learn).scores(texts)
    group = score.to_numpy().reshape(3, groups, -1)
    rank = (-group.sum(-1)).argsort(1).argsort(1)
    gates = torch.tensor((rank<n*groups//4).repeat(4//groups, 1).astype('float32'))
    with gated(learn.model, gates): masked = as_predictor(learn).scores(texts)
    assert torch.allclose(small.scores(texts), masked, atol=1e-5) and not torch.allclose(masked, before, atol=1e-5)
    assert torch.equal(as_predictor(learn).scores(texts), before)
    path = small.save(tmp_path/'small')
    assert torch.allclose(from_hf(path, 'cpu').scores(texts), masked, atol=1e-5)
    body = AutoModel.from_pretrained(path)
    assert body.config.num_attention_heads==n and body.num_parameters()<learn.model.body.num_parameters()
    again = classifier_learner(classifier_dls(tiny_df(), path), path)
    assert torch.allclose(as_predictor(again).scores(texts), masked, atol=1e-5)

@pytest.mark.parametrize('family', 'bert roberta modernbert t5'.split())
def test_what_cannot_be_cut(family):
    score = pd.Series(1., pd.MultiIndex.from_product([(1,2,3),range(4)], names=['layer','head']))
    with pytest.raises(ValueError, match=f"transformers' {family} cannot have fewer heads"): prune_heads(network(family), score)
