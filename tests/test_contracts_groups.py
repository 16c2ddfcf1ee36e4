"Layer groups: blocks + 2, every parameter in one of them, and in the order in which the signal passes"
import pytest, torch
from fastformers.models.families import block_modules, group_names, layer_groups
from test_contracts_common import *

pytestmark = pytest.mark.exact

n_blocks = {o:1 if o=='albert' else 3 for o in families} # ALBERT's three layers share their weights
tied_head = 'openai-gpt gpt2'.split() # their LM head is the embedding matrix (llama's would be, but its config unties it)
text = [' '.join(texts[:3])]

def ids(ps): return [id(p) for p in ps]

def moved(model, x, k, hidden=None):
    "(hidden states, output) of `model`, noise added to the parameters of its group `k` where that is given"
    model = noisy(model, k)
    with torch.no_grad(): return model.body(**model.model_inputs(x), output_hidden_states=True).hidden_states, model(x)

@pytest.mark.parametrize('kind', ['classifier','language model'])
@pytest.mark.parametrize('family', families)
def test_a_group_acts_on_what_follows_it_alone(family, kind):
    model = (classifier if kind=='classifier' else language_model)(family)
    x = all_predicted(batch(tokenizer(family), text))
    hs,out = moved(model, x, None)
    n = n_blocks[family]
    assert len(hs)==4 # embeddings and three layers
    for k in range(len(layer_groups(model))):
        new,new_out = moved(model, x, k)
        # the last state may be after the final norm, which belongs to the head
        same = 3 if k==n+1 else k
        for i in range(same): assert torch.equal(new[i], hs[i]), (k, i)
        if k<=n:
            for i in range(same, 4): assert gap(new[i], hs[i])>1e-4, (k, i)
        assert gap(new_out, out)>1e-4, k

@pytest.mark.parametrize('family', tied_head+['bert','albert','modernbert','deberta-v2'])
def test_a_tied_head_belongs_to_the_embeddings(family):
    model = language_model(family)
    inp,out = model.hf.get_input_embeddings().weight, model.hf.get_output_embeddings().weight
    assert inp is out and id(inp) in ids(layer_groups(model)[0])
    assert sum(p is inp for g in layer_groups(model) for p in g)==1

@pytest.mark.parametrize('kwargs', [{}, {'tie_word_embeddings':True}])
def test_llama_has_its_head_in_the_head_group_unless_it_is_tied(kwargs):
    model = CLM(tiny_tok('llama')).build(tiny_arch('llama', **kwargs))
    at = [i for i,g in enumerate(layer_groups(model)) if id(model.hf.get_output_embeddings().weight) in ids(g)]
    assert at==([0] if kwargs else [4]) and len(layer_groups(model))==5
