"""The command ``jm``: every process and every question of JobMaster from a terminal."""
