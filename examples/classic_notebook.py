"""The classic fastai notebook with a transformer: 46 cells from a language model to an exported classifier

    python examples/classic_notebook.py                  # a tiny RoBERTa with random weights, half a minute on a CPU
    ARCH=albert python examples/classic_notebook.py      # another tiny network of `fastformers.testing`
    ARCH=minilm python examples/classic_notebook.py      # a pretrained network: pip install "fastformers[minilm]"

Each `# %%` begins a cell: editors such as VS Code and Spyder run them one by one, as a notebook does. Files are written to a temporary directory.
"""
# %% 1. Import fastai, then fastformers
import os, tempfile
import numpy as np
from fastai.text.all import *
from fastformers.all import *
from fastformers.testing import tiny_arch, tiny_df, tiny_tok
arch,path = os.environ.get('ARCH', 'roberta'),Path(tempfile.mkdtemp())
os.chdir(path)
set_seed(42, reproducible=True)

# %% 2. Look at the data
df = tiny_df()
df.label.value_counts()

# %% 3. Choose a checkpoint and its tokenizer, or a config for random weights
start,tok = ('minilm',load_tokenizer('minilm')) if arch=='minilm' else (tiny_arch(arch),tiny_tok(arch))

# %% 4. Data of the language model: 15 % of the tokens are masked, 15 % of the texts are held out
dls_lm = lm_dls(df.drop(columns='is_valid'), tok, MLM(tok, p=.15), bs=16, seq_len=64, valid_pct=.15)
assert len(dls_lm.valid_ds)

# %% 5. Show a batch of it
dls_lm.show_batch(max_n=2)

# %% 6. A learner for the language model
learn = lm_learner(dls_lm, start, cbs=CSVLogger('lm.csv'))
learn.loss_func

# %% 7. Its layers
assert 'Trainable' in str(learn.summary())

# %% 8. Find a learning rate
lr = learn.lr_find(num_it=30).valley
assert 0<lr<10

# %% 9. Train what is new first
learn.freeze()
learn.fit_one_cycle(1, 1e-3)

# %% 10. Save and load
learn.save('1epoch')
learn.load('1epoch')

# %% 11. Train all layers
learn.unfreeze()
learn.fit_one_cycle(2, 1e-3)
assert len(learn.csv_logger.read_log())==2

# %% 12. Validate
last = learn.recorder.values[-1]
assert np.allclose([*learn.validate()], last[1:])

# %% 13. Ask it
learn.fill_mask(f'This is a {tok.mask_token} film.', n=3)

# %% 14. Save the encoder, for the classifier
learn.save_encoder('lm')

# %% 15. A DataBlock for the classifier
block = DataBlock(blocks=(HFTextBlock('lm'), CategoryBlock), get_x=ColReader('text'), get_y=ColReader('label'), splitter=ColSplitter())
block.summary(df.iloc[:40], bs=4)

# %% 16. Its data
dls = block.dataloaders(df, bs=8)
assert len(dls.valid_ds)==df.is_valid.sum()

# %% 17. Show a batch
dls.show_batch(max_n=3)

# %% 18. Classes and types
x,y = dls.one_batch()
assert [*dls.vocab]==sorted(df.label.unique()) and isinstance(x, TensorTokens) and isinstance(y, TensorCategory)

# %% 19. A learner that draws its losses and writes them to a file
learn = classifier_learner(dls, 'lm', metrics=[accuracy, F1Score(average='macro')], cbs=[ShowGraphCallback(), CSVLogger()])

# %% 20. Its layers
assert 'Trainable' in str(learn.summary())

# %% 21. One group for each layer, as the splitter sees them
groups = learn.splitter(learn.model)
assert len(groups)>=3 and sum(map(len, groups))==len([*learn.model.parameters()])

# %% 22. Freeze all but the head
learn.freeze()
assert not any(p.requires_grad for ps in groups[:-1] for p in ps)

# %% 23. Find a learning rate
found = learn.lr_find(num_it=30, suggest_funcs=(minimum, steep, valley, slide))
assert all(o>0 for o in found)

# %% 24. Train the head
learn.fit_one_cycle(1, 2e-2)

# %% 25. Unfreeze a group more
learn.freeze_to(-2)
learn.fit_one_cycle(1, slice(1e-3/(2.6**4), 1e-3))
assert not any(p.requires_grad for ps in groups[:-2] for p in ps)

# %% 26. And one more
learn.freeze_to(-3)
learn.fit_one_cycle(1, slice(1e-3/(2.6**4), 1e-3))

# %% 27. Train all layers, and save each epoch
learn.unfreeze()
learn.fit_one_cycle(2, slice(1e-4, 1e-3), cbs=SaveModelCallback(every_epoch=True, fname='epoch'))
assert (learn.path/'models/epoch_1.pth').exists()

# %% 28. Keep the best model, and stop where nothing improves
learn.fit(3, 1e-3, cbs=[SaveModelCallback(monitor='accuracy'), EarlyStoppingCallback(monitor='accuracy', patience=2)])
best = max(o[2] for o in learn.recorder.values)

# %% 29. Draw the losses
learn.recorder.plot_loss(skip_start=0)

# %% 30. Draw the schedule of a fit
learn.fit_one_cycle(1, 1e-5)
learn.recorder.plot_sched()

# %% 31. Read the history that was written
history,values = learn.csv_logger.read_log(),[*learn.recorder.values]
assert len(history)==1 and {'train_loss','valid_loss','accuracy','f1_score'}<={*history.columns}

# %% 32. Validate
loss,acc,f1 = learn.validate()
assert np.isclose(acc, values[-1][2])

# %% 33. Predictions of the validation rows
preds,targs,decoded,losses = learn.get_preds(with_decoded=True, with_loss=True)
assert np.isclose((decoded==targs).float().mean(), acc) and np.isclose(losses.mean(), loss, atol=1e-4)

# %% 34. Predict a text
label,i,probs = learn.predict('A wonderful phone, I love it.')
assert label==dls.vocab[i] and np.isclose(probs.sum(), 1)

# %% 35. Show results
learn.show_results(max_n=3)

# %% 36. Interpret
interp = ClassificationInterpretation.from_learner(learn)
assert interp.confusion_matrix().sum()==len(dls.valid_ds)

# %% 37. Confusion matrix
interp.plot_confusion_matrix()

# %% 38. Top losses
interp.plot_top_losses(3)

# %% 39. What is confused most
interp.most_confused(min_val=1)

# %% 40. Report by class
interp.print_classification_report()

# %% 41. Predict texts without labels
dl = dls.test_dl(['It broke after a day.', 'It is a phone.'])
test_preds,_ = learn.get_preds(dl=dl)
assert test_preds.shape==(2,3)

# %% 42. Export
with learn.removed_cbs(learn.csv_logger): learn.export() # fastai cannot export its closed file

# %% 43. Load what was exported
again = load_learner(learn.path/'export.pkl')
assert np.allclose(again.predict('It is a phone.')[2], test_preds[1], atol=1e-4)

# %% 44. Leave fastai; the history stays as it was
history = learn.csv_logger.read_log()
learn.to_hf('classifier')
assert history.equals(learn.csv_logger.read_log())

# %% 45. Open it without fastai
scores = from_hf('classifier').scores(['It broke after a day.', 'It is a phone.'])
assert np.allclose(scores, test_preds, atol=1e-4)

# %% 46. Begin anew in one line
learn = classifier_learner(dls, 'lm', metrics=accuracy)
learn.fine_tune(1, 1e-3)
print(f'{arch}: 46 cells, accuracy {learn.recorder.values[-1][2]:.2f}')
