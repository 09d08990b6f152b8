from tests.conftest import Call, one_line

SEARCH = "hparams_search=default"
FIXED = ["optim.lr=0.01", "optim.muon_lr=0.01", "optim.cooldown=0.5", "model.dropout=0"]


def test_ranges_that_cannot_be_searched(train: Call) -> None:
    for arguments, said in (
        (["optim.lr=tag(log,choice(0.001,0.01))"], "goes around interval(a,b)"),
        (["model.dropout=tag(log,interval(0,0.1))"], "needs a lower bound above 0"),
        (["optim.lr=interval(0.1,0.1)"], "the lower bound must be below the upper"),
        (["optim.lr=shuffle(choice(0.001,0.01))"], "a search takes interval(a,b)"),
        (["data.tokenizer=interval(0,1)"], "data.tokenizer takes one of char, byte; list the values"),
        (["model.heads=range(4,4)"], "holds no values"),
        (["launcher=slurm"], "whose trials are processes of this machine"),
        (["workers=1,2"], "workers: must have one value for all trials of a search"),
        (FIXED, "nothing is left to search: every key of the space is fixed"),
    ):
        one_line(train(SEARCH, *arguments), 2, said)
    one_line(train("hparams_search.trials=3"), 2, "hparams_search.trials: goes with hparams_search=default")
    one_line(train(SEARCH, "--cfg=job"), 2, "--cfg=job: shows the settings of one run")
