"What the speed benchmarks share: contenders that take turns, ratios with their spread, peak memory of processes, a table of targets"
import argparse, multiprocessing as mp, os, threading, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
import numpy as np

def parser(doc, repeats=3):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--repeats', type=int, default=repeats, help=f'rounds in which the contenders take turns (default {repeats})')
    p.add_argument('--threads', type=int, default=1, help='threads of each contender (default 1)')
    return p

def in_turn(contenders, repeats, says=None):
    "Call each of `contenders` (name: function) once a round, the order turned round from one round to the next, so that a slow minute hits them alike; what they returned, name: list"
    names,res = list(contenders),{k:[] for k in contenders}
    for i in range(repeats):
        for k in names[::1 if i%2==0 else -1]:
            start = time.perf_counter()
            res[k].append(contenders[k]())
            print(f'  round {i+1} of {repeats}: {k:36} {says(res[k][-1]) if says else f"{time.perf_counter()-start:8.2f} s"}', flush=True)
    return res

def spread(xs): return dict(median=round(float(np.median(xs)),4), min=round(float(min(xs)),4), max=round(float(max(xs)),4), each=[round(float(o),4) for o in xs])

def ratio(a, b):
    "`a`/`b`, round by round: a round's two figures come from the same minute"
    return spread([x/y for x,y in zip(a, b, strict=True)])

def targets(*rows):
    "Print (what, figure or `spread`, '>=' or '<=', target) as a table; the same as a list of dicts"
    res = []
    print(f"\n{'':62}{'median':>9}{'range':>22}   target")
    for what,o,how,goal in rows:
        o = o if isinstance(o, dict) else dict(median=o, min=o, max=o)
        met = None if goal is None else bool(o['median']>=goal if how=='>=' else o['median']<=goal)
        print(f"{what:62}{o['median']:9.4g}{o['min']:10.4g} - {o['max']:<9.4g}" + ('' if met is None else f"  {how} {goal:<6g}  {'met' if met else 'MISSED'}"))
        res.append(dict(what=what, **o, **({} if met is None else dict(target=f'{how} {goal}', met=met))))
    return res

def rss_anon(pid='self'): return next(int(o.split()[1]) for o in Path(f'/proc/{pid}/status').read_text().splitlines() if o.startswith('RssAnon'))/1024

class Peak:
    "Highest RssAnon of this process and its children while inside, MiB"
    def __enter__(self):
        self.mb,self.on = 0,True
        self.t = threading.Thread(target=self._watch); self.t.start()
        return self
    def _watch(self):
        kids = Path(f'/proc/self/task/{os.getpid()}/children')
        while self.on:
            own,total = rss_anon(),0
            for o in kids.read_text().split():
                try: total += rss_anon(o)
                except (OSError, StopIteration): pass
            self.mb = max(self.mb, own+total)
            time.sleep(.05)
    def __exit__(self, *args): self.on = False; self.t.join()

def _as_usual(f, args):
    mp.set_start_method(None, force=True) # a spawned process would spawn its own children too, where a script forks them, and pay for their imports
    return f(*args)

def in_fresh_process(f, *args):
    with ProcessPoolExecutor(1, mp.get_context('spawn')) as p: return p.submit(_as_usual, f, args).result() # may have children of its own

class Clock:
    "When each step of a run ended, by the clock and in seconds of processor time, and its loss"
    def __init__(self, steps, warm=1): self.steps,self.warm,self.at,self.losses = steps,warm,[],[]
    def tick(self, loss=None):
        import torch
        if torch.cuda.is_available(): torch.cuda.synchronize()
        self.at.append((time.perf_counter(), time.process_time()))
        if loss is not None: self.losses.append(loss.detach())
        return len(self.at)>=self.steps
    def result(self, tokens):
        "Tokens a second after the first `warm` steps, in which optimizers make their state; the loss of each step"
        assert len(self.at)==self.steps, f'{len(self.at)} steps were run, expected {self.steps}'
        (wall,cpu),n = (b-a for a,b in zip(self.at[self.warm-1], self.at[-1])),sum(tokens[self.warm:])
        return {'tokens/s':n/wall, 'tokens/s of processor time':n/cpu, 'step_s':wall/(self.steps-self.warm), 'losses':[float(o) for o in self.losses]}

def says_tokens(o):
    return f"{o['tokens/s']:9.0f} tokens/s, {o['tokens/s of processor time']:9.0f} a second of processor time" + (f"  loss {o['losses'][0]:.4f} -> {o['losses'][-1]:.4f}" if o['losses'] else '')

def tokens_of(runs): return {k:{f:spread([o[f] for o in v]) for f in ('tokens/s','tokens/s of processor time')} for k,v in runs.items()}

def times(runs, a, b):
    "How many times the tokens/s of `b` does `a` make: by the clock, and by processor time, which other work on the machine disturbs less (and which means nothing where a GPU works)"
    return [ratio(*([o[f] for o in runs[k]] for k in (a,b))) for f in ('tokens/s','tokens/s of processor time')]

class LMTask:
    """Masked LM training that several contenders are to do alike: one set of first weights, the first `steps` batches of `dls` with their masks, in their order, one precision, a constant rate, AdamW in torch's fused
    kernel with the same coefficients; no evaluation, logging, clipping, saving or worker processes. What is timed is everything from the end of the first step to the end of the last: loader, masks, transfer, model, loss,
    backward pass, optimizer."""
    opt = dict(mom=.9, sqr_mom=.99, eps=1e-5, wd=.01) # those of `FusedAdam`
    def __init__(self, arch, dls, steps, lr=5e-4, dropout=True, warm=1):
        import copy, torch
        from fastformers.learner.core import lm_learner
        self.arch,self.dls,self.steps,self.lr,self.drop_mult,self.warm = arch,dls,steps,lr,float(dropout),warm
        torch.manual_seed(0)
        hf = lm_learner(dls, arch).model.hf.cpu()
        self.auto,self.config,self.state = type(hf),copy.deepcopy(hf.config),{k:v.clone() for k,v in hf.state_dict().items()}
        for k,v in vars(self.config).items():
            if 'drop' in k and isinstance(v, float): setattr(self.config, k, v*self.drop_mult)
        self.batches = [b for _,b in zip(range(steps), dls.train)] # (tokens, targets); an unfinished pass does not count, so every run sees it again
        assert len(self.batches)==steps, f'the data make {len(self.batches)} batches, {steps} are needed'
        self.tokens = [int(x.attention_mask.sum()) for x,_ in self.batches]
        self.device = dls.device

    def dense(self):
        "The same network as Hugging Face runs it"
        hf = self.auto._from_config(self.config)
        hf.load_state_dict(self.state)
        return hf.to(self.device)

    def autocast(self, precision):
        import torch
        return torch.autocast(torch.device(self.device).type, dtype=dict(bf16=torch.bfloat16, fp16=torch.float16).get(precision), enabled=precision!='fp32')

    def ours(self, precision, cbs=(), seed=0):
        "A plain `fit` of `lm_learner`"
        import torch
        from fastai.callback.core import Callback, CancelFitException
        from fastai.callback.fp16 import AMPMode, MixedPrecision
        from fastformers.learner.core import lm_learner
        from fastformers.callback.compute import cpu_bf16
        clock = Clock(self.steps, self.warm)
        class Ticks(Callback):
            order = 1000
            def after_batch(self):
                if clock.tick(self.loss): raise CancelFitException
        amp = [] if precision=='fp32' else [cpu_bf16(enabled=True)] if torch.device(self.device).type=='cpu' else [MixedPrecision(AMPMode(precision))]
        learn = lm_learner(self.dls, self.arch, drop_mult=self.drop_mult, cbs=[*amp, *cbs])
        learn.model.hf.load_state_dict(self.state)
        torch.manual_seed(seed)
        with learn.no_bar(): learn.fit(1, self.lr, cbs=Ticks())
        return clock.result(self.tokens)

    def trainer(self, precision, seed=0, **kwargs):
        "Hugging Face's `Trainer` with `DataCollatorForLanguageModeling`, which pads as ever but is handed our masks, so drawing them costs it nothing"
        import tempfile, torch
        from accelerate.state import AcceleratorState
        from transformers import DataCollatorForLanguageModeling, PrinterCallback, Trainer, TrainerCallback, TrainingArguments
        from fastformers.data.block import tokenizer_of
        from fastformers.models.core import ModelInputs
        clock,ready = Clock(self.steps, self.warm),[(torch.where(y!=-100, y, x.ids).cpu(), x.ids.cpu(), y.as_subclass(torch.Tensor).cpu()) for x,y in self.batches]
        class Collator(DataCollatorForLanguageModeling):
            def torch_mask_tokens(self, inputs, **kwargs):
                ids,masked,targets = ready[self.n]
                self.n += 1
                assert torch.equal(inputs, ids), 'the rows of this batch are not ours'
                return masked, targets
        class Timed(Trainer):
            def training_step(self, *args, **kwargs):
                clock.losses.append(super().training_step(*args, **kwargs).detach())
                return clock.losses[-1]
        class Ticks(TrainerCallback):
            def on_step_end(self, *args, **kwargs): clock.tick()
        model = self.dense()
        keys = ['input_ids','attention_mask'] + ['token_type_ids']*ModelInputs(model.base_model).segments # as the family's own tokenizer would give
        rows = [dict(zip(keys, (o.tolist() for o in row))) for (ids,*_),(x,_) in zip(ready, self.batches) for row in zip(ids, x.attention_mask, x.segment_ids)]
        AcceleratorState._reset_state(reset_partial_state=True) # accelerate remembers the precision of the process's first run
        collator = Collator(tokenizer_of(self.dls).tok)
        collator.n = 0
        with tempfile.TemporaryDirectory() as tmp:
            args = TrainingArguments(tmp, max_steps=self.steps, per_device_train_batch_size=len(self.batches[0][0]), train_sampling_strategy='sequential', learning_rate=self.lr, lr_scheduler_type='constant',
                                     optim='adamw_torch_fused', adam_beta1=self.opt['mom'], adam_beta2=self.opt['sqr_mom'], adam_epsilon=self.opt['eps'], weight_decay=self.opt['wd'], max_grad_norm=0.,
                                     use_cpu=torch.device(self.device).type=='cpu', bf16=precision=='bf16', fp16=precision=='fp16', seed=seed, dataloader_num_workers=0, dataloader_pin_memory=False, disable_tqdm=True,
                                     logging_strategy='no', logging_nan_inf_filter=False, save_strategy='no', eval_strategy='no', report_to='none', remove_unused_columns=False, **kwargs)
            trainer = Timed(model, args, data_collator=collator, train_dataset=rows, callbacks=[Ticks()])
            trainer.remove_callback(PrinterCallback)
            torch.manual_seed(seed)
            trainer.train()
        assert type(trainer.optimizer.optimizer).__name__=='AdamW' and trainer.optimizer.param_groups[0]['fused']
        return clock.result(self.tokens)

    def headless(self, precision, seed=0, fast=False):
        "The limit: a bare loop over batches that lie ready, of the body and a step of the optimizer, no LM head, a loss that costs nothing; `fast`: with our attention and dropout on a CPU"
        import torch
        from fastformers.models.core import ModelInputs
        from fastformers.models.fast_cpu import use_fast_cpu
        body = self.dense().base_model.train()
        if fast: use_fast_cpu(body)
        inputs,clock = ModelInputs(body),Clock(self.steps, self.warm)
        opt = torch.optim.AdamW(body.parameters(), self.lr, (self.opt['mom'],self.opt['sqr_mom']), self.opt['eps'], self.opt['wd'], fused=True)
        torch.manual_seed(seed)
        w = torch.randn(self.config.hidden_size, device=self.device)/100 # the sum of normalised states itself has no gradient
        for x,_ in self.batches:
            with self.autocast(precision): h = body(**inputs(x))[0]
            (h.float()@w).mean().backward()
            opt.step()
            opt.zero_grad()
            clock.tick()
        return clock.result(self.tokens)

    def count(self, rows=4):
        "Floating point operations of forward and backward pass for each of ours and the dense network, and the largest logits, all for a few rows of one batch"
        import torch
        from torch.utils.flop_counter import FlopCounterMode
        from fastformers.models.core import LanguageModel, ModelInputs
        from fastformers.objectives.core import TokenLoss
        res,hf,(x,y) = {},self.dense(),(o[:rows] for o in self.batches[0])
        head,sizes = hf.get_output_embeddings(),[]
        head.register_forward_hook(lambda m,args,out: sizes.append(out.numel()*out.element_size()))
        inputs,ours = ModelInputs(hf.base_model),LanguageModel(hf)
        losses = dict(ours=lambda: TokenLoss()(ours(x), y), dense=lambda: hf(**inputs(x), labels=y.as_subclass(torch.Tensor)).loss)
        for k,f in losses.items():
            sizes.clear()
            with FlopCounterMode(display=False) as n: f().backward()
            res[k] = dict(flops_a_token=n.get_total_flops()/int(x.attention_mask.sum()), largest_logits_mib=max(sizes)/2**20)
        return res
