"""How a case begins: what a user, a dashboard or a log says.

A complaint is true, is not everything, and names no fault. Faults of one group can stand behind one
complaint, and so can a healthy script if the group may be `healthy`: then every text is true of it
as well, so that the words tell nobody whether there is a fault. `{first}`, `{loss}` and
`{accuracy}` are filled in with what the script shows.
"""

from __future__ import annotations

from typing import NamedTuple

from dlsys_checks.exam import faults, numbers


class Group(NamedTuple):
    """Faults behind one kind of complaint, and its texts."""

    faults: tuple[str, ...]
    texts: tuple[str, ...]
    healthy: bool = True


GROUPS = {
    "accuracy": Group(
        ("12.7", "04.2", "04.5", "04.3", "07.8", "07.4", "01.4"),
        ("Dashboard, Monday 8:40: accuracy {accuracy}. The run of last week had about 90 %, and "
         "nobody says that they changed anything.",
         "The nightly job went red: it wants an accuracy of 80 %, and this script reached "
         "{accuracy}. The log ends without an error."), healthy=False),
    "loss": Group(
        ("03.1", "02.4", "06.6", "10.1", "07.10", "03.4"),
        ("Log of the run: first loss {first}, mean of the last ten {loss}, accuracy {accuracy}. "
         "Somebody wrote next to it: \"these three don't fit together, do they?\"",
         "A reviewer read that a net with ten classes begins at a loss of 2.303. Ours goes from "
         "{first} to {loss}, with an accuracy of {accuracy}, and she wants to know why.")),
    "weights": Group(
        ("09.1", "03.3", "02.1", "02.3", "09.8", "04.1"),
        ("Two colleagues trained from what they think is one recipe. Both nets get about nine of "
         "ten digits right, but their weights differ. Is the recipe in this script right?",
         "Before the big run, the team lead asks you to sign that every weight of this model is "
         "trained as planned. Loss and accuracy look fine, which she says means little.")),
    "answers": Group(
        ("01.1", "05.3", "08.11", "06.1"),
        ("Support ticket: \"The scores of my image are not those of your report.\" The accuracy in "
         "the report looks fine, and the ticket has no numbers.",
         "An auditor sent single images through the test, and writes that she cannot reproduce "
         "the report to the last digit. She does not say how far she is off.")),
    "shipped": Group(
        ("06.4", "10.4", "11.1", "07.4"),
        ("Release notes: \"the best state of the run, made smaller, as accurate as before\". A "
         "customer tried ten digits of her own, and two were wrong. Are the notes honest?",
         "The model was tested, kept, made smaller and shipped. Before the next customer gets it, "
         "the field team asks whether each of these steps did what it should.")),
    "images": Group(
        ("06.6", "12.3", "09.5", "12.7"),
        ("An intern saved the batches of two epochs and looked at them. \"Something about these "
         "images is odd\", he says, and cannot say what.",
         "The data team asks what the net was really trained on. They delivered the images and "
         "their labels, and have not seen what became of them.")),
    "devices": Group(
        ("09.11", "09.12", "15.1", "15.3"),
        ("Since the job runs on more than one device, the ranks log different losses in the same "
         "step. Every device reports success. A colleague thinks that they should agree.",
         "Before the move to several devices, you are asked whether the code for several devices "
         "does what the code for one does. Last year it did not.")),
    "scale": Group(
        ("15.8", "15.4", "15.1", "15.3"),
        ("Post-mortem of a run that was stopped after a day: \"On one GPU everything was as "
         "expected.\" Nobody wrote down more. Are the functions in `cut` to blame?",
         "Before the big run, the planners want to hear that the functions in `cut` do what their "
         "docstrings say. Last year they did not, and the bill was high.")),
    "serving": Group(
        ("13.1", "13.2", "13.5", "13.6"),
        ("A user of the language model complains: \"I sent my prompt twice, and got two different "
         "answers.\" The server was updated in the night.",
         "Since the new server is on, a customer doubts that its answers are those of the model. "
         "It happens in busy hours, and nobody can say to which requests.")),
    "preferences": Group(
        ("14.1", "14.2", "14.3", "14.4"),
        ("People like the policy less than the one of last month. No curve looks alarming. Was it "
         "trained as it should be?",
         "The preference run ended somewhere else than the one of last month, which had another "
         "seed. Its log has no warning, and its author is on holiday.")),
}


def looks_for(group: str) -> tuple[str, ...]:
    """What could show one of the group's faults, in the order of the list of looks."""
    shown = {shows[:2] for id in GROUPS[group].faults for shows in faults.FAULTS[id].shows}
    return tuple(name for name, look in numbers.LOOKS.items()
                 if any((look.probe, one) in shown for one in look.names))
